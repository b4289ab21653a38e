"""Matrix products in FP8, with a scale per row of an operand (``torch._scaled_mm``).

Operands are cast when used; memory and collectives stay in 16 bits. All three products of a
projection are in e4m3 (Micikevicius et al. 2022; torchao's "rowwise" recipe), embedding, logits and
attention are not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.kernels import Kernels, like

CAST_AT_ONCE = 1 << 24
"""Numbers: enough to keep a device busy, in 64 MiB of float32."""


class Float8Kernels(Kernels):
    """The three products of a layer in FP8: the device's e4m3, which has two forms."""

    own_gradients = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.most = torch.finfo(dtype).max

    @property
    def of_head(self) -> Kernels:
        return Kernels()

    def outputs(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = like(x, self._product(x.flatten(0, 1), weight))
        return y if bias is None else y + bias

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        return like(grad, self._product(grad.flatten(0, 1), weight.t()))

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        rows, columns = grad.flatten(0, 1).t(), x.flatten(0, 1).t()
        if more := -rows.size(1) % 16:  # tokens are the inner size, which the kernels want whole
            rows, columns = F.pad(rows, (0, more)), F.pad(columns, (0, more))
        return self._product(rows, columns)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """``left`` times ``right`` transposed, (rows, inner) and (columns, inner)."""
        mine, mine_scale = self._cast(left)
        other, other_scale = self._cast(right)
        product: Tensor = torch._scaled_mm(
            mine, other.t(), mine_scale, other_scale.t(), out_dtype=left.dtype
        )
        return product

    def _cast(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as codes, and what each row's codes are to be multiplied by, (rows, 1).

        Some rows at a time: quotients are in float32, four times as large as the codes.
        """
        codes = torch.empty(matrix.shape, dtype=self.dtype, device=matrix.device)
        scales = torch.empty(matrix.size(0), 1, dtype=torch.float32, device=matrix.device)
        least = torch.finfo(torch.float32).tiny * self.most
        rows = max(1, CAST_AT_ONCE // matrix.size(1))
        parts = (whole.split(rows) for whole in (matrix, codes, scales))
        for part, out, scale in zip(*parts, strict=True):
            largest = torch.linalg.vector_norm(part, torch.inf, 1, keepdim=True)
            torch.div(largest.float().clamp(min=least), self.most, out=scale)
            out.copy_(part / scale)
        return codes, scales
