"""Training by DeepSpeed: the same model, configuration and data, by the engine many users run.

A second opinion on every figure. The differences that DeepSpeed imposes are in
``docs/guide/training.md``; what it cannot do is in ``deepspeed.rules``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.data.batches import Dataset, micro_batches
from trainer.deepspeed.rules import unsupported, zero_stage
from trainer.model.attention import Places
from trainer.model.initialize import initialize
from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.transformer import Stage
from trainer.optimizer import StepReport
from trainer.parallel.collectives import Traffic
from trainer.parallel.loss import cross_entropy
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError
from trainer.plan.placement import Placement
from trainer.plan.states import BUCKET_ELEMENTS
from trainer.runtime.device import Device
from trainer.runtime.phase import phase


def load_deepspeed(config: TrainConfig, device: Device) -> ModuleType:
    """Import DeepSpeed and let it take over the default process group; repeats do nothing.

    It takes seconds and is part of start-up: call it before memory is counted and limited. Raises
    ConfigError if it is not installed.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cpu":
        ranks = dist.get_world_size()
        topology = config.topology(ranks, device.local_world_size)
        os.environ["LOCAL_SIZE"] = str(topology.ranks_per_node)  # its devices of a node
    else:
        # It numbers devices by local rank, also where the launcher shows each rank only one.
        os.environ["LOCAL_RANK"] = str(device.torch.index)
    with contextlib.redirect_stdout(sys.stderr):  # its banners and its log
        try:
            deepspeed = importlib.import_module("deepspeed")
        except ModuleNotFoundError as error:
            if error.name != "deepspeed":
                raise
            raise ConfigError(
                "engine deepspeed: DeepSpeed is not installed; pip install 'meshtune[deepspeed]'"
            ) from error
        # Its optimizers would import torch's compiler later.
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        # Shared memory serves its inference only, and would be compiled here and now.
        backend = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
        deepspeed.init_distributed(dist_backend=device.backend, dist_init_required=False)
    # Names that torch 2.13 replaced; it says so on every rank.
    warnings.filterwarnings("ignore", r".*_tensor` is deprecated", FutureWarning, "torch")
    return deepspeed


def deepspeed_config(config: TrainConfig, placement: Placement) -> dict[str, Any]:
    """Configuration for ``deepspeed.initialize``; ``deepspeed.rules`` accept ``config``."""
    stage, optimizer = zero_stage(placement), config.optimizer
    adamw = {"torch_adam": True, "fused": True, "betas": [optimizer.beta1, optimizer.beta2]}
    adamw |= optimizer.model_dump(include={"lr", "eps", "weight_decay"})
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.mbs,
        "gradient_accumulation_steps": config.gas,
        "steps_per_print": config.steps + 1,
        # With infinity it computes the norm; without clipping it would not.
        "gradient_clipping": optimizer.grad_clip or float("inf"),
        "optimizer": {"type": "AdamW", "params": adamw},
        "zero_optimization": _zero(config, placement, stage),
        "communication_data_type": config.reduce_precision,
        "bf16": {"enabled": config.precision == "bf16", "check_grad_overflow": False},
        "fp16": {
            "enabled": config.precision == "fp16",
            "initial_scale_power": 16,
            "loss_scale_window": 2000,
            "hysteresis": 1,
        },
    }
    # Its 16-bit ZeRO-0 has no float32 sums, with which its fp16 pipeline would not sum a tied
    # embedding's gradients.
    if stage != 0 and not (config.pp > 1 and config.precision == "fp16"):
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    return values


def _zero(config: TrainConfig, placement: Placement, stage: int | None) -> dict[str, Any]:
    model = config.model
    layer = 12 * model.hidden_size**2  # elements of a layer, about
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": config.pp == 1,
        # It allocates buffers of this size; its default is 2 GB and more.
        "reduce_bucket_size": min(BUCKET_ELEMENTS, model.num_parameters),
        "allgather_bucket_size": min(BUCKET_ELEMENTS, model.num_parameters),
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            # By default no layer of a model below 10^9 parameters is ever freed.
            "stage3_max_reuse_distance": layer,
            "stage3_param_persistence_threshold": 10 * model.hidden_size,
            "zero_hpz_partition_size": placement.secondary_shard or 1,
            "zero_quantized_weights": placement.gather_format == Format.INT8,
            "zero_quantized_gradients": placement.reduce_format == Format.INT4,
        }
    return zero


class _Recomputed(nn.Module):
    """A block that DeepSpeed recomputes in the backward pass."""

    def __init__(self, block: nn.Module, checkpoint: Callable[..., Tensor]) -> None:
        super().__init__()
        self.block = block
        self.checkpoint = checkpoint

    def forward(self, x: Tensor, places: Places) -> Tensor:
        return self.checkpoint(self.block, x, places)


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
    """The whole model with its initial weights; with ZeRO-3 never whole in memory."""
    sharded = values["zero_optimization"]["stage"] == 3
    if sharded:
        # Its configuration names the dtype: an argument ``dtype`` would be taken for bfloat16 on
        # any device without fp16 kernels, such as most CPUs (0.19.8, ``_set_dtype``).
        with deepspeed.zero.Init(config_dict_or_path=values):
            stage = Stage(config.model)
    else:
        with torch.device("meta"):
            stage = Stage(config.model)
        stage = stage.to(COMPUTE_DTYPE[config.precision]).to_empty(device=device)
    for name, module in stage.named_modules():
        own = list(module.parameters(recurse=False))
        if own:
            whole = deepspeed.zero.GatheredParameters(own, 0) if sharded else None
            with whole or contextlib.nullcontext():
                initialize(module, f"{name}.", config.model, config.seed)
    if stage.tied and stage.head is not None and stage.embedding is not None:
        # ZeRO-3 gathers a parameter of two modules for either of them.
        stage.head.weight = stage.embedding.weight
        stage.tied = False
    if config.recompute == "full":
        for layer, block in stage.blocks.items():
            stage.blocks[layer] = _Recomputed(block, deepspeed.checkpointing.checkpoint)
    return _LossOfStage(stage)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters by whether weight decay applies: to matrices, not to norms and biases."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in module.parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)  # as a whole, if it is sharded
        groups[len(shape) > 1].append(parameter)
    decays = {True: weight_decay, False: 0.0}
    return [{"params": p, "weight_decay": decays[kind]} for kind, p in groups.items() if p]


def _check_visible(ranks_per_node: int) -> None:
    """Refuse ranks that do not see all devices of their node: DeepSpeed takes them for a node."""
    seen = torch.cuda.device_count()
    if seen != ranks_per_node:
        raise ConfigError(
            f"engine deepspeed: quantize_gradients with {seen} visible devices on nodes of "
            f"{ranks_per_node} ranks: it would take each {seen} ranks for a node; let every rank "
            "see all devices of its node, or set quantize_gradients: false"
        )


class DeepSpeedTrainer:
    """``train.Trainer``'s counterpart by DeepSpeed; raises ConfigError for what that cannot run."""

    def __init__(self, config: TrainConfig, device: Device) -> None:
        phase.name = "build"
        ranks = dist.get_world_size()
        local = device.local_world_size
        config.check(ranks, local)
        reason = unsupported(config, ranks, device.type, local)  # type: ignore[arg-type]
        if reason:
            raise ConfigError(reason)
        self.config = config
        self.device = device
        self.dp = config.data_parallel(ranks)
        self.traffic: Traffic | None = None  # its collectives are its own
        self.kernels: dict[str, Any] | None = None  # as are its products
        self.replica = dist.get_rank() % self.dp  # ranks are a grid (pp, dp)
        placement = config.place(ranks, local)
        deepspeed = load_deepspeed(config, device)
        values = deepspeed_config(config, placement)
        if values["zero_optimization"].get("zero_quantized_gradients"):
            _check_visible(config.topology(ranks, local).ranks_per_node)
        with contextlib.redirect_stdout(sys.stderr):
            module = self._build(deepspeed, values)
            groups = _groups(module, config.optimizer.weight_decay)
            given = {"model": module, "model_parameters": groups, "config": values}
            self.engine, *_ = deepspeed.initialize(**given)
        if values["zero_optimization"]["stage"] == 0:
            if config.precision == "fp32":
                self._keep_norm()
            else:
                self._undo_first_step()

    def _build(self, deepspeed: ModuleType, values: dict[str, Any]) -> nn.Module:
        if self.config.pp == 1:
            return _build_whole(deepspeed, self.config, values, self.device.torch)
        from trainer.deepspeed.pipeline import build_pipeline  # DeepSpeed's classes are its bases

        before = torch.get_default_dtype()
        torch.set_default_dtype(COMPUTE_DTYPE[self.config.precision])
        try:
            return build_pipeline(self.config)
        finally:
            torch.set_default_dtype(before)

    def _keep_norm(self) -> None:
        """Keep the norm, which the engine discards when it clips in plain float32."""
        from deepspeed.runtime.utils import clip_grad_norm_

        engine = self.engine

        def clip() -> None:
            engine._global_grad_norm = clip_grad_norm_(
                engine.module.parameters(), engine.gradient_clipping(), mpu=engine.mpu
            )

        engine.clip_fp32_gradients = clip

    def _undo_first_step(self) -> None:
        """Undo the step without gradients that its ZeRO-0 in bf16 begins with.

        It would shift Adam's bias correction, and has applied weight decay.
        """
        o, optimizer = self.config.optimizer, self.engine.basic_optimizer
        optimizer.state.clear()
        with torch.no_grad():
            for group in optimizer.param_groups:
                torch._foreach_div_(group["params"], 1 - o.lr * group["weight_decay"])

    def resume(self) -> int:
        """Always 0: this engine has no checkpoints here."""
        return 0

    def validate(self, dataset: Dataset) -> float:
        """Never called, see ``TrainConfig``."""
        raise NotImplementedError

    def save_if_due(self, step: int, last: int) -> None:
        """Nothing is saved, see ``TrainConfig``."""

    def finish(self, stopped: bool = False) -> None:
        """Nothing is being written."""

    def step(self, number: int, dataset: Dataset, stop: bool | None = None) -> StepReport:
        skipped = self.engine.skipped_steps
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.config.lr(number)
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
        device = self.device.torch
        before = step * self.config.mbs * self.config.gas * self.dp
        batches = micro_batches(self.config, dataset, before, self.replica)
        for tokens, targets in zip(batches.tokens, batches.targets, strict=True):
            yield tokens.to(device), targets.to(device)
