"""What one training run is told: the model's shape and how it is trained.

Torch-free, so that the search and the cost model can read the same records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from foundation.files import FileError, read_json
from foundation.records import Record, mistakes
from trainer.plan.axes.mesh import (
    FURTHER_AXES,
    GRID,
    Axes,
    RankOrder,
    beside_dp,
    is_pp_inside,
    ordered,
    ranks_of_replica,
)
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError, Layers, Ranks, Sequences, Steps
from trainer.plan.loss_tokens import Documents, Goldfish
from trainer.plan.model import ModelConfig
from trainer.plan.optimizer import LRScheduler, OptimizerConfig
from trainer.plan.output import Metrics, Validation
from trainer.plan.placement import Placement, PlacementError, Topology
from trainer.plan.presets import STAGES, Preset, Wishes, place
from trainer.plan.rules.requirement import Requirement, refusal
from trainer.plan.rules.requirements import requirements
from trainer.plan.stages import StageLayout
from trainer.plan.states import BUCKET_ELEMENTS

__all__ = [
    "ConfigError",
    "Documents",
    "Goldfish",
    "LRScheduler",
    "Metrics",
    "ModelConfig",
    "OptimizerConfig",
    "Precision",
    "Recompute",
    "TrainConfig",
    "Validation",
]

Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]
"""What layers compute in; fp8: their matrix products, all else in bf16."""
PipelineSchedule = Literal[
    "1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]


class TrainConfig(Record):
    """Everything ``python -m trainer CONFIG.json`` needs; ``dp`` is what the ranks leave."""

    model: ModelConfig
    data: str = Field(description="prefix of an indexed token file: PREFIX.bin and PREFIX.idx")
    tp: Ranks = 1
    cp: Ranks = Field(default=1, description="ranks of context parallelism, on one sequence")
    gx: Ranks = Field(
        default=1, description="grid of tensor-parallel ranks: over each layer's outputs"
    )
    gy: Ranks = Field(default=1, description="the same over each layer's inputs")
    gz: Ranks = Field(
        default=1, description="the same over a replica's sequences, with weights split further"
    )
    pp: Ranks = 1
    vpp: Layers = Field(default=1, description="model chunks per pipeline rank")
    pipeline_schedule: PipelineSchedule = Field(
        default="1F1B",
        description="order of passes, as torch calls it; 1F1B with vpp > 1 is interleaved",
    )
    first_stage_layers: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="layers of the first pipeline rank, which has the embedding; the others share "
        "the rest equally. 0: its share",
    )
    last_stage_layers: int = Field(
        default=0, ge=0, le=100_000, description="the same of the last one, which has the logits"
    )
    rank_order: RankOrder = Field(
        default="tp-cp-dp-pp",
        description="axes on ranks, innermost first; tp-pp-cp-dp keeps stages within a node and "
        "spreads replicas over nodes",
    )
    mbs: Sequences = Field(default=1, description="sequences per micro-batch and replica")
    gas: Sequences = Field(default=1, description="micro-batches per step and replica")
    zero_stage: Literal[0, 1, 2, 3] = 0
    placement: Preset | None = Field(
        default=None, description="a named placement, in place of zero_stage"
    )
    weight_shard: Ranks | None = Field(
        default=None, description="data-parallel ranks that weights are split over"
    )
    secondary_shard: int | None = Field(
        default=None, ge=0, le=2**30, description="and a nearer copy of them (hpZ); 0: no copy"
    )
    gradient_shard: Ranks | None = Field(default=None, description="and gradients")
    optimizer_shard: Ranks | None = Field(default=None, description="and optimizer states")
    quantize_weights: bool | None = Field(
        default=None, description="gather weights as INT8 (qwZ); default as the placement says"
    )
    quantize_gradients: bool | None = Field(
        default=None, description="reduce gradients as INT4 (qgZ)"
    )
    quantize_secondary: bool | None = Field(
        default=None, description="keep the secondary copy as INT8"
    )
    refresh_secondary: Literal["step", "micro_batch"] = Field(
        default="step",
        description="when the secondary copy is renewed: once the weights changed, or in every "
        "forward pass, as ZeRO++ was published",
    )
    reduce_precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="of gradients on their way, where they are not quantized"
    )
    reduce_gradients: Literal["micro_batch", "step"] = Field(
        default="micro_batch",
        description="when split gradients (ZeRO 2 and 3) are reduced: behind each micro-batch, or "
        "once, from a whole sum in memory",
    )
    ddp_bucket_size: int = Field(
        default=BUCKET_ELEMENTS,
        ge=1,
        le=2**40,
        description="parameters whose gradients are reduced at once, with ZeRO 0 to 2; a larger "
        "one is a bucket of its own",
    )
    ranks_per_node: Ranks | None = Field(
        default=None, description="default what the launcher says (LOCAL_WORLD_SIZE)"
    )
    ranks_per_pair: Ranks = Field(
        default=1, description="ranks on one card: 2 on MI250X, whose dies are devices"
    )
    sequence_parallel: bool = False
    overlap_all_reduce: bool = Field(
        default=True, description="of the grid: sum an input's gradient behind the weight's product"
    )
    overlap_reduce_scatter: bool = Field(
        default=True, description="of the grid: scatter weights' gradients behind what follows"
    )
    overlap_all_gather: bool = Field(
        default=True, description="of the grid: gather the next layer's weights ahead"
    )
    tune_kernels: bool = Field(
        default=False,
        description="time each matrix product with its operands stored by rows and by columns, "
        "after the first step, and go on with what is fastest",
    )
    recompute: Recompute = Field(
        default="none",
        description="in the backward pass: selective, all but matrix products and attention; full, "
        "each layer from its input",
    )
    recompute_every: Layers = Field(
        default=1, description="layers that recompute: every such; of the others all is kept"
    )
    compile: bool = Field(
        default=False, description="compile each layer by torch's compiler; takes minutes once"
    )
    precision: Precision = "bf16"
    engine: Literal["meshtune", "deepspeed"] = "meshtune"
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_scheduler: LRScheduler = Field(
        default=LRScheduler(), description="the learning rate over the steps; default constant"
    )
    documents: Documents | None = Field(
        default=None,
        description="heed the boundaries of documents within samples; default one stream",
    )
    loss_mask: str | None = Field(
        default=None,
        description="prefix of an indexed file as long as data: 0 for tokens that are not in the "
        "loss",
    )
    goldfish: Goldfish | None = Field(
        default=None, description="leave tokens out of the loss; default none"
    )
    validation: Validation | None = Field(
        default=None, description="loss on held-out data; default none"
    )
    metrics: Metrics | None = Field(
        default=None, description="figures of single steps in a file; default none"
    )
    seed: int = Field(default=1234, ge=0, lt=2**63)
    warmup_steps: int = Field(default=2, ge=0, le=1_000_000_000)
    measured_steps: Steps = 5
    save: str | None = Field(
        default=None, description="folder for checkpoints; the last 2 are kept"
    )
    save_interval: Steps | None = Field(
        default=None, description="steps between checkpoints; default only at the end"
    )
    async_save: bool = Field(
        default=False,
        description="write checkpoints from a copy on the host while training goes on",
    )
    load: str | None = Field(
        default=None,
        description="folder with checkpoints: go on from the latest complete one, in any layout, "
        "for warmup_steps + measured_steps more",
    )
    initial_load_path: str | None = Field(
        default=None,
        description="folder of Hugging Face weights (Llama, GPT-2; safetensors) to begin from, "
        "where load has no checkpoint yet",
    )
    last_save_in_hf: bool = Field(
        default=False, description="at the end also write the weights so, as hf in the folder save"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**60,
        description="limit per rank on what torch's allocator reserves of the device, on a CPU on "
        "private memory; default the device's own",
    )
    time_communication: bool = Field(
        default=False,
        description="wait for every collective and report its time, which slows training; on CPU "
        "gathering and reducing run side by side, and their times overlap",
    )
    collective_timeout_s: float = Field(default=600.0, gt=0, le=366 * 86400.0)

    @model_validator(mode="after")
    def _one_placement(self) -> TrainConfig:
        if self.placement is not None and self.zero_stage:
            raise ValueError(
                f"placement {self.placement} and zero_stage {self.zero_stage}: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _checkpoints(self) -> TrainConfig:
        if self.save_interval is not None and self.save is None:
            raise ValueError(f"save_interval {self.save_interval} needs a folder: set save")
        if self.async_save and self.save is None:
            raise ValueError("async_save needs a folder: set save")
        if self.last_save_in_hf and self.save is None:
            raise ValueError("last_save_in_hf needs a folder: set save")
        if self.last_save_in_hf:
            self.model.model_type()  # or it is refused, before the first step
        if self.engine == "deepspeed" and (self.save or self.load or self.initial_load_path):
            raise ValueError(
                "engine deepspeed has no checkpoints here: remove save, load and initial_load_path"
            )
        if self.engine == "deepspeed" and self.validation is not None:
            raise ValueError("engine deepspeed has no validation here: remove validation")
        return self

    @model_validator(mode="after")
    def _whole_loss(self) -> TrainConfig:
        for name in ("goldfish", "documents", "loss_mask"):
            if self.engine == "deepspeed" and getattr(self, name) is not None:
                what = f"{name} loss" if name == "goldfish" else name
                raise ValueError(f"engine deepspeed has no {what} here: remove {name}")
        return self

    @model_validator(mode="after")
    def _whole_samples(self) -> TrainConfig:
        if self.cp > 1 and self.splits_samples:
            raise ValueError(
                f"documents with cp {self.cp}: ring attention sees whole samples; set cp: 1, or "
                "reset_attention_mask and reset_position_ids: false"
            )
        return self

    @property
    def format(self) -> Format:
        """Of weights and activations as they are stored and sent."""
        return Format.BF16 if self.precision == "fp8" else Format(self.precision)

    @property
    def sums_whole_gradients(self) -> bool:
        """Whether split gradients are whole until the last micro-batch."""
        return self.reduce_gradients == "step" and self.gas > 1

    @property
    def defers_weight_gradients(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.pp > 1 and self.pipeline_schedule not in ("1F1B", "LoopedBFS")

    @property
    def stages(self) -> StageLayout:
        """Those of the pipeline, one without."""
        folded = self.pp > 1 and self.pipeline_schedule in ("ZBVZeroBubble", "DualPipeV")
        first, last = self.first_stage_layers, self.last_stage_layers
        return StageLayout(self.pp, self.vpp, self.model.num_layers, first, last, folded)

    @property
    def splits_samples(self) -> bool:
        """Whether a token's place in its document matters, not only that in its sample."""
        return self.documents is not None and self.documents.splits_samples

    @property
    def masks_loss(self) -> bool:
        """Whether some tokens may not be in the loss."""
        at_ends = self.documents is not None and self.documents.eod_mask_loss
        return self.goldfish is not None or self.loss_mask is not None or at_ends

    @property
    def keeps_products(self) -> bool:
        """Whether ``selective`` keeps products and attention, not all but attention."""
        return self.cp == 1 and not self.grid_axes

    def recomputed(self, layers: range) -> int:
        """How many of these layers of the model compute something again, as ``recompute`` says."""
        if self.recompute == "none":
            return 0
        return sum(layer % self.recompute_every == 0 for layer in layers)

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.measured_steps

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0 since the start of training."""
        return self.optimizer.lr * self.lr_scheduler.factor(step)

    def data_parallel(self, world_size: int) -> int:
        """Replicas that ``world_size`` ranks form; raises ConfigError if they do not divide."""
        return int(self.axes(world_size).sizes["dp"])

    def axes(self, world_size: int) -> Axes:
        """The parallel axes and their sizes; raises ConfigError if they leave no whole replicas."""
        own = [*self.grid_axes, *FURTHER_AXES]
        degrees = {name: getattr(self, name) for name in beside_dp(own)}
        if broken := refusal(self._requirements(), {"world_size": world_size, **degrees}):
            raise ConfigError(broken)
        dp = world_size // ranks_of_replica(degrees, own)
        sizes = {name: degrees.get(name, dp) for name in ordered(own)}
        return Axes(sizes, bool(is_pp_inside(self.rank_order)))

    @property
    def grid_axes(self) -> tuple[str, ...]:
        """The axes of the grid, all of them or none."""
        return tuple(GRID) if any(getattr(self, name) > 1 for name in GRID) else ()

    def _requirements(self) -> tuple[Requirement, ...]:
        """In the words of the axes that the configuration uses."""
        further = [name for name in FURTHER_AXES if getattr(self, name) > 1]
        return requirements([*self.grid_axes, *further])

    def topology(self, world_size: int, local_world_size: int | None = None) -> Topology:
        """Ranks of a node and of a pair.

        Args:
            world_size: what a node has where neither the configuration nor the launcher says.
            local_world_size: the launcher's word.
        """
        return Topology(self.ranks_per_node or local_world_size or world_size, self.ranks_per_pair)

    def place(self, world_size: int, local_world_size: int | None = None) -> Placement:
        """Where weights, gradients and optimizer states go; raises ConfigError."""
        axes = self.axes(world_size)
        dp = axes.sizes["dp"]
        wishes = {name: getattr(self, name) for name in Wishes.__dataclass_fields__}
        try:
            return place(
                self.placement or STAGES[self.zero_stage],
                Wishes(**wishes),
                dp,
                axes.of_states.stride("dp"),
                self.topology(world_size, local_world_size),
                self.format,
                Format(self.reduce_precision),
                cp=self.cp,
                gz=self.gz,
            )
        except PlacementError as error:
            raise ConfigError(f"{error} ({world_size} ranks, dp {dp})") from error

    def check(self, world_size: int, local_world_size: int | None = None) -> None:
        """Raise ConfigError for a configuration that this trainer cannot run on so many ranks."""
        gradient_shard = self.place(world_size, local_world_size).gradient_shard
        model = self.model
        sizes = model.model_dump(
            include={"hidden_size", "num_heads", "num_layers", "vocab_size", "seq_length"}
        )
        resolved = {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}
        own = {"tp", *GRID, "cp", "pp", "vpp", "mbs", "gas", "sequence_parallel"}
        own |= {"pipeline_schedule", "recompute", "compile", "tune_kernels", "precision"}
        own |= {"first_stage_layers", "last_stage_layers"}
        said = {**self.model_dump(include=own), "gradient_shard": gradient_shard}
        if broken := refusal(self._requirements(), {**sizes, **resolved, **said}):
            raise ConfigError(broken)

    @classmethod
    def read(cls, path: Path) -> TrainConfig:
        """Read a JSON file; raises ConfigError that names the file, the key and the value."""
        try:
            return cls.parse(read_json(path))
        except FileError as error:
            raise ConfigError(str(error)) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, values: Any) -> TrainConfig:
        """Validate a mapping; raises ConfigError that names the keys and their values."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(mistakes(error)) from error
