"""Asynchronous tensor parallelism: a product in one operator with the exchange at its side.

torch's operators copy a part from a peer's memory while another is multiplied. They have kernels
for CUDA only; on a CPU their fallbacks gather and multiply one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from trainer.parallel.collectives import Group
from trainer.plan.limits import ConfigError

_own = torch.ops.symm_mem
_gather, _scatter = "symm_mem::fused_all_gather_matmul", "symm_mem::fused_matmul_reduce_scatter"
torch.library.impl(_gather, "cpu", symmetric._fused_all_gather_matmul_fallback)
torch.library.impl(_scatter, "cpu", symmetric._fused_matmul_reduce_scatter_fallback)


def fuse(group: Group, share_bytes: int, on_gpu: bool) -> None:
    """Let products of up to ``share_bytes`` a rank run fused from now on; all ranks call it.

    Raises ConfigError if a device cannot map its peers' memory, a workspace of which is made here:
    a larger one would be exchanged within a pass.
    """
    try:  # of a scattered product one part is computed while another is read
        if on_gpu:
            symmetric.get_symm_mem_workspace(group.handle.group_name, 2 * share_bytes)
    except RuntimeError as error:
        raise ConfigError(
            f"async_tp: devices do not map each other's memory ({str(error).partition('.')[0]}); "
            "show each rank all GPUs of its node (site profile: gpus: per_node), or set it to false"
        ) from error
    group.fused = True


def gather_product(
    x: Tensor, matrix: Tensor, group: Group, keeps: bool = False
) -> tuple[Tensor | None, Tensor]:
    """The ranks' tensors along the first dimension, if ``keeps``, and their product with a matrix
    (inputs, outputs)."""
    group.traffic.add("tensor", group.level, (group.size - 1) * x.nbytes)
    told = x.contiguous(), [matrix], 0, group.handle.group_name
    whole, (product,) = _own.fused_all_gather_matmul(*told, return_A=keeps)
    return whole, product


def product_scatter(x: Tensor, matrix: Tensor, group: Group) -> Tensor:
    """A rank's share, along the first dimension, of the products' sum over the ranks."""
    share = _own.fused_matmul_reduce_scatter(x, matrix, "sum", 0, group.handle.group_name)
    group.traffic.add("tensor", group.level, (group.size - 1) * share.nbytes)
    return share
