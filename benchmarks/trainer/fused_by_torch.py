"""Which exchanges of a Llama block torch's compiler fuses with products (``_micro_pipeline_tp``).

    python -m benchmarks.trainer.fused_by_torch

The block is split and recomputed as torchtitan does it, over eight pretended ranks: none sends.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.fx_passes import post_grad
from torch.distributed import _symmetric_memory as symmetric, distributed_c10d as c10d
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, parallel as by
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import trainer.parallel.collectives  # noqa: F401  fused operators on a CPU

HIDDEN, HEADS, FFN, TOKENS, RANKS = 1024, 8, 2048, 256, 8
KINDS = {
    "gathers": "all_gather_into_tensor", "scatters": "reduce_scatter_tensor",
    "fused gathers": "fused_all_gather_matmul", "fused scatters": "fused_matmul_reduce_scatter",
}  # fmt: skip


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (HIDDEN,), self.weight)


class Products(nn.Module):
    """Linear layers by name: inputs and outputs."""

    def __init__(self, **sizes: tuple[int, int]) -> None:
        super().__init__()
        for name, size in sizes.items():
            self.add_module(name, nn.Linear(*size, bias=False))


class Attention(Products):
    """Causal attention."""

    def forward(self, x: Tensor) -> Any:
        heads = *x.shape[:2], -1, HIDDEN // HEADS
        q, k, v = (own(x).view(heads).transpose(1, 2) for own in (self.wq, self.wk, self.wv))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.wo(found.reshape(*x.shape[:2], -1))


class FeedForward(Products):
    """A gated unit."""

    def forward(self, x: Tensor) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer of Llama, without rotation, split over the ranks."""

    def __init__(self) -> None:
        super().__init__()
        square = HIDDEN, HIDDEN
        self.attention = Attention(wq=square, wk=square, wv=square, wo=square)
        self.feed = FeedForward(w1=(HIDDEN, FFN), w3=(HIDDEN, FFN), w2=(FFN, HIDDEN))
        self.before, self.between = Norm(), Norm()
        whole = by.PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        plan: dict[str, Any] = {"attention": whole, "feed": whole}
        plan |= dict.fromkeys(("before", "between"), by.SequenceParallel())
        columns = [*(f"attention.w{one}" for one in "qkv"), "feed.w1", "feed.w3"]
        plan |= dict.fromkeys(columns, by.ColwiseParallel())
        rows = by.RowwiseParallel(output_layouts=Shard(1))
        plan |= dict.fromkeys(("attention.wo", "feed.w2"), rows)
        by.parallelize_module(self.bfloat16(), init_device_mesh("cpu", (RANKS,)), plan)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


def selective() -> Any:
    """torchtitan's selective recomputation by operator: every second product is computed again."""
    product = torch.ops.aten.mm.default
    kept: set[Any] = {
        product,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen[context.is_recompute] += operator is product
        again = operator is product and seen[context.is_recompute] % 2 == 0
        saved = operator in kept and not again
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def count(recompute: bool) -> list[dict[str, int]]:
    """Exchanges of the forward and of the backward graph, and those in one operator."""
    found = []
    fuse = post_grad.micro_pipeline_tp_pass

    def counted(graph: torch.fx.Graph) -> None:
        def number(kind: str) -> int:
            return sum(kind in str(node.target) for node in graph.nodes)

        every = {name: number(kind) for name, kind in KINDS.items() if "fused" not in name}
        fuse(graph)
        found.append(every | {name: number(KINDS[name]) for name in KINDS if name not in every})

    block: Any = Block()
    if recompute:
        block = checkpoint_wrapper(block, context_fn=selective, preserve_rng_state=False)
    post_grad.micro_pipeline_tp_pass = counted
    try:
        with config.patch(_micro_pipeline_tp=True, force_disable_caches=True):
            x = torch.randn(2, TOKENS // RANKS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
            torch.compile(block, fullgraph=True)(x).sum().backward()
    finally:
        post_grad.micro_pipeline_tp_pass = fuse
        torch._dynamo.reset()
    return found


def main() -> int:
    """Print a row for each graph."""
    c10d.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    own: Any = torch.distributed
    own.is_nccl_available = lambda: True  # else the compiler fuses nothing
    symmetric.is_symm_mem_enabled_for_group = lambda name: True
    rows = [
        [name, of, *graph.values()]
        for name, recompute in (("none", False), ("selective", True))
        for of, graph in zip(("forward", "backward"), count(recompute), strict=True)
    ]
    print(f"torch {torch.__version__}\n")
    print(f"| recomputation | graph | {' | '.join(KINDS)} |\n|{'---|' * (2 + len(KINDS))}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
