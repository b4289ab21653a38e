"""Training by DeepSpeed: the same model, configuration and data, by the engine many users run.

A second opinion on every figure. The differences that DeepSpeed imposes are in
``docs/deepspeed.md``; what it cannot do is in ``deepspeed_rules``. It is imported when it is used,
since it takes seconds and may not be installed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import ConfigError, TrainConfig
from trainer.deepspeed_rules import unsupported, zero_stage
from trainer.device import Device
from trainer.initialize import initialize
from trainer.loss import cross_entropy
from trainer.model import Stage
from trainer.optimizer import StepReport
from trainer.phase import phase
from trainer.placement import Format, Placement
from trainer.precision import COMPUTE_DTYPE

if TYPE_CHECKING:
    from trainer.train import Dataset

_BUCKET_ELEMENTS = 16 * 2**20


def load_deepspeed(device: Device, ranks_per_node: int) -> ModuleType:
    """Import DeepSpeed for a device and let it take over the default process group.

    Call it before memory is limited and counted: what it loads is start-up, as torch's is.

    Args:
        device: of this rank.
        ranks_per_node: what it takes for the number of a node's devices on CPU.

    Raises:
        ConfigError: if it is not installed.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cpu":
        os.environ["LOCAL_SIZE"] = str(ranks_per_node)
    else:
        # It numbers devices by local rank, and knows nothing of launchers that show each rank one.
        os.environ["LOCAL_RANK"] = str(device.torch.index)
    with _talk_to_stderr():
        try:
            import deepspeed
        except ModuleNotFoundError as error:
            if error.name != "deepspeed":
                raise
            raise ConfigError(
                "engine deepspeed: DeepSpeed is not installed; pip install 'meshtune[deepspeed]'"
            ) from error
        # Shared memory serves its inference only, and would be compiled here and now.
        backend = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
        deepspeed.init_distributed(dist_backend=device.backend, dist_init_required=False)
    return deepspeed


@contextlib.contextmanager
def _talk_to_stderr() -> Iterator[None]:
    """Keep its banners, and those of its log that begins here, out of standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def deepspeed_config(config: TrainConfig, placement: Placement, device: Device) -> dict[str, Any]:
    """DeepSpeed's own configuration; how it maps is in ``docs/deepspeed.md``."""
    stage = zero_stage(placement)
    model, o = config.model, config.optimizer
    layer = 12 * model.hidden_size**2  # elements of a layer, about
    secondary = placement.secondary
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": config.pp == 1,
        # It sets buffers of this size aside; its default is 2 GB and more.
        "reduce_bucket_size": min(_BUCKET_ELEMENTS, model.num_parameters),
        "allgather_bucket_size": min(_BUCKET_ELEMENTS, model.num_parameters),
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            # By default no layer of a model below 10^9 parameters is ever freed.
            "stage3_max_reuse_distance": layer,
            "stage3_param_persistence_threshold": 10 * model.hidden_size,
            "zero_hpz_partition_size": secondary.degree if secondary else 1,
            "zero_quantized_weights": placement.gather_format == Format.INT8,
            "zero_quantized_gradients": placement.reduce_format == Format.INT4,
        }
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.mbs,
        "gradient_accumulation_steps": config.gas,
        "steps_per_print": config.steps + 1,
        # Infinite: it then counts the norm, which it does not without clipping.
        "gradient_clipping": o.grad_clip or float("inf"),
        "optimizer": {
            "type": "AdamW",
            "params": {
                "torch_adam": True,
                "fused": True,
                "lr": o.lr,
                "betas": [o.beta1, o.beta2],
                "eps": o.eps,
                "weight_decay": o.weight_decay,
            },
        },
        "zero_optimization": zero,
        "communication_data_type": config.reduce_precision,
        "bf16": {"enabled": config.precision == "bf16", "check_grad_overflow": False},
        "fp16": {
            "enabled": config.precision == "fp16",
            "initial_scale_power": 16,
            "loss_scale_window": 2000,
            "hysteresis": 1,
        },
    }
    if stage != 0:
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    return values


class _Recomputed(nn.Module):
    """A block that DeepSpeed computes again in the backward pass."""

    def __init__(self, block: nn.Module, checkpoint: Callable[..., Tensor]) -> None:
        super().__init__()
        self.block = block
        self.checkpoint = checkpoint

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor] | None) -> Tensor:
        return self.checkpoint(self.block, x, table)


class _LossOfStage(nn.Module):
    """The whole model, ending in its loss."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.stage(tokens), targets, None)


def _build_whole(
    deepspeed: ModuleType, config: TrainConfig, values: dict[str, Any], device: torch.device
) -> nn.Module:
    """The whole model with its first weights; with ZeRO-3 never whole in memory."""
    dtype = COMPUTE_DTYPE[config.precision]
    sharded = values["zero_optimization"]["stage"] == 3
    if sharded:
        with deepspeed.zero.Init(config_dict_or_path=values, dtype=dtype):
            stage = Stage(config.model)
    else:
        with torch.device("meta"):
            stage = Stage(config.model)
        stage = stage.to(dtype).to_empty(device=device)
    for name, module in stage.named_modules():
        own = list(module.parameters(recurse=False))
        if own:
            whole = deepspeed.zero.GatheredParameters(own, 0) if sharded else None
            with whole or contextlib.nullcontext():
                initialize(module, f"{name}.", config.model, config.seed)
    if stage.tied and stage.head is not None and stage.embedding is not None:
        # A parameter of two modules is one that ZeRO-3 gathers for either.
        stage.head.weight = stage.embedding.weight
        stage.tied = False
    if config.recompute == "full":
        for layer, block in stage.blocks.items():
            stage.blocks[layer] = _Recomputed(block, deepspeed.checkpointing.checkpoint)
    return _LossOfStage(stage)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters by whether weight decay applies: to matrices, not to norms and biases."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in module.parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)  # as a layer, if it is split
        (matrices if len(shape) > 1 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class DeepSpeedTrainer:
    """A model under training by DeepSpeed on this rank; ``train.Trainer``'s counterpart.

    Args:
        config: what to train and how.
        device: of this rank.

    Raises:
        ConfigError: if DeepSpeed cannot train it on so many ranks, or is not installed.
    """

    def __init__(self, config: TrainConfig, device: Device) -> None:
        phase.name = "build"
        ranks = dist.get_world_size()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
        config.check(ranks, local)
        reason = unsupported(config, ranks, device.type, local)  # type: ignore[arg-type]
        if reason:
            raise ConfigError(reason)
        self.config = config
        self.device = device
        self.dp = config.data_parallel(ranks)
        self.replica = dist.get_rank() % self.dp  # ranks are a grid (pp, dp)
        placement = config.place(ranks, local)
        deepspeed = load_deepspeed(device, config.topology(ranks, local).ranks_per_node)
        values = deepspeed_config(config, placement, device)
        with _talk_to_stderr():
            module = self._build(deepspeed, values)
            self.engine, *_ = deepspeed.initialize(
                model=module,
                model_parameters=_groups(module, config.optimizer.weight_decay),
                config=values,
            )
        if placement.optimizer.degree == 1 and config.precision == "fp32":
            self._keep_norm()

    def _build(self, deepspeed: ModuleType, values: dict[str, Any]) -> nn.Module:
        if self.config.pp == 1:
            return _build_whole(deepspeed, self.config, values, self.device.torch)
        from trainer.deepspeed_pipeline import build_pipeline  # DeepSpeed's classes are its bases

        before = torch.get_default_dtype()
        torch.set_default_dtype(COMPUTE_DTYPE[self.config.precision])
        try:
            return build_pipeline(self.config)
        finally:
            torch.set_default_dtype(before)

    def _keep_norm(self) -> None:
        """Plain float32 is clipped by the engine itself, which forgets the norm."""
        from deepspeed.runtime.utils import clip_grad_norm_

        engine = self.engine

        def clip() -> None:
            engine._global_grad_norm = clip_grad_norm_(
                engine.module.parameters(), engine.gradient_clipping(), mpu=engine.mpu
            )

        engine.clip_fp32_gradients = clip

    def step(self, number: int, dataset: Dataset) -> StepReport:
        """One optimizer step on the global batch of that number."""
        skipped = self.engine.skipped_steps
        if self.config.pp > 1:
            phase.name = "forward"
            loss = self.engine.train_batch(data_iter=self._batches(number, dataset))
        else:
            loss = self._accumulate(number, dataset)
        norm = float(self.engine.get_global_grad_norm())
        return StepReport(float(loss), norm, self.engine.skipped_steps == skipped)

    def _accumulate(self, number: int, dataset: Dataset) -> Tensor:
        """Pass a step's micro-batches through the engine; mean loss of all replicas."""
        total = torch.zeros((), device=self.device.torch)
        for tokens, targets in self._batches(number, dataset):
            phase.name = "forward"
            loss = self.engine(tokens, targets)
            phase.name = "backward"
            self.engine.backward(loss)
            total += loss.detach()
            phase.name = "optimizer"
            self.engine.step()
        total /= self.config.gas * self.dp
        dist.all_reduce(total)
        return total

    def _batches(self, step: int, dataset: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
        """This replica's micro-batches, on its device."""
        config = self.config
        for micro_batch in range(config.gas):
            tokens, targets = dataset.batch(
                step,
                micro_batch,
                self.replica,
                mbs=config.mbs,
                gas=config.gas,
                dp=self.dp,
                seq_length=config.model.seq_length,
                seed=config.seed,
            )
            yield tokens.to(self.device.torch), targets.to(self.device.torch)


def train_with_deepspeed(
    config: TrainConfig, dataset: Dataset, progress: Callable[[str], None], device: Device
) -> dict[str, Any]:
    """Train by DeepSpeed; see ``trainer.train.train``, whose contract this is.

    ``communication`` is empty: DeepSpeed's collectives are its own.
    """
    trainer = DeepSpeedTrainer(config, device)
    reports: list[StepReport] = []
    times: list[float] = []
    dist.barrier()
    for number in range(config.steps):
        begin = device.clock()
        report = trainer.step(number, dataset)
        times.append(device.clock() - begin)
        reports.append(report)
        progress(
            f"step {number + 1}/{config.steps} loss {report.loss:.4f} "
            f"norm {report.grad_norm:.3f} time {times[-1]:.3f} s"
        )
    return {
        "step_times_s": times,
        "losses": [report.loss for report in reports],
        "grad_norms": [report.grad_norm for report in reports],
        "skipped_steps": sum(not report.done for report in reports),
        "peak_memory_bytes": device.peak_memory_bytes(),
        "communication": {},
    }
