"""Training loops as torch's own tutorials write them: DDP, ZeroRedundancyOptimizer, FSDP2.

What one gets without an engine, in the same steps: gradients of ``gas`` micro-batches, clipped by
their global norm, AdamW, and the mean loss of all replicas.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from trainer.model.initialize import initialize
from trainer.model.transformer import Stage
from trainer.plan.config import TrainConfig


class PlainTrainer:
    """ZeRO-0 as DDP, 1 as DDP with ZeroRedundancyOptimizer, 2 and 3 as FSDP2.

    bf16 is autocast with DDP, and the mixed precision of FSDP2.

    Args:
        config: what to train; one pipeline stage, whole tensors, on CPU.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.dp = dist.get_world_size()
        stage = Stage(config.model)
        initialize(stage, "", config.model, config.seed)
        self.autocast = config.precision == "bf16" and config.zero_stage < 2
        if config.zero_stage < 2:
            self.model: nn.Module = DistributedDataParallel(stage)
        else:
            self.model = _fsdp(stage, config)
        self.optimizer = _optimizer(self.model, config)

    def step(self, number: int, dataset: Any) -> float:
        """One optimizer step; the mean loss of all replicas."""
        config = self.config
        total = torch.zeros(())
        for micro_batch in range(config.gas):
            first = (number * self.dp + dist.get_rank()) * config.gas + micro_batch
            tokens, targets = dataset.samples(
                first * config.mbs, config.mbs, seq_length=config.model.seq_length, seed=config.seed
            )
            with self._synchronized(micro_batch == config.gas - 1):
                loss = self._loss(tokens, targets)
                (loss / config.gas).backward()
            total += loss.detach()
        clip = config.optimizer.grad_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        total /= config.gas * self.dp
        dist.all_reduce(total)
        getattr(norm, "full_tensor", lambda: norm)().item()  # everyone reports the norm
        return total.item()

    def _synchronized(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP reduces gradients once a step; FSDP2 must scatter them, or it would hold all."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.model(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.t().reshape(-1))


def _fsdp(stage: Stage, config: TrainConfig) -> Stage:
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[config.precision]
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reshard = config.zero_stage == 3
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return stage


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    o = config.optimizer
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": o.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    options = {"lr": o.lr, "betas": (o.beta1, o.beta2), "eps": o.eps, "fused": True}
    if config.zero_stage == 1:
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options)
    return torch.optim.AdamW(groups, **options)
