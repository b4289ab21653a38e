"""What one training run is told: the model's shape and how it is trained.

Torch-free, so that the search and the cost model can read the same records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.axes import FURTHER_AXES, GRID, Axes, beside_dp, ordered, ranks_of_replica
from trainer.files import FileError, mistakes, read_json
from trainer.formats import Format
from trainer.placement import Placement, PlacementError, Topology
from trainer.presets import STAGES, Preset, Wishes, place
from trainer.rules.requirements import Requirement, refusal, requirements
from trainer.sizes import Latent, Mixture, layer_matrices, layer_weights, table_weights

Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "bf16", "fp16"]
# Beyond any machine: products of such numbers stay within floating point's range.
Layers = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
Sequences = Annotated[int, Field(ge=1, le=1_000_000)]
Ranks = Annotated[int, Field(ge=1, le=2**30)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ConfigError(ValueError):
    """A training configuration that no run can satisfy; the message names the remedy."""


class _Record(BaseModel):
    """Strict: an unknown key is a mistake, never ignored."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class ModelConfig(_Record):
    """Shape of a decoder-only transformer. Sizes are counts, not bytes."""

    num_layers: Layers
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width | None = Field(
        default=None, description="groups of grouped-query attention; default num_heads"
    )
    ffn_hidden_size: Width | None = Field(default=None, description="default 4 * hidden_size")
    vocab_size: Tokens = Field(ge=2)
    seq_length: Tokens
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Literal["learned", "rotary"] = "learned"
    activation: Literal["gelu", "swiglu"] = "gelu"
    linear_bias: bool = True
    tied_embeddings: bool = True
    rope_theta: float = Field(default=10_000.0, gt=0, le=1e15)

    @model_validator(mode="after")
    def _divides(self) -> ModelConfig:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.kv_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.head_dim}")
        return self

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def ffn_size(self) -> int:
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def attention_size(self) -> int:
        """Channels of all heads' queries."""
        return self.hidden_size

    @property
    def attended(self) -> int:
        """Keys of each query, masked ones included."""
        return self.seq_length

    @property
    def mixture(self) -> Mixture | None:
        """This trainer trains no mixtures of experts; records of other models may."""
        return None

    @property
    def latent(self) -> Latent | None:
        """Nor latent attention."""
        return None

    @property
    def gated(self) -> bool:
        """SwiGLU: two projections up instead of one."""
        return self.activation == "swiglu"

    @property
    def num_parameters(self) -> int:
        """Trained parameters, counted exactly as ``trainer.model.transformer`` builds them."""
        tables = 1 if self.tied_embeddings else 2
        biases = sum(m.outputs for m in layer_matrices(self)) if self.linear_bias else 0
        norm = (2 if self.norm == "layernorm" else 1) * self.hidden_size
        positions = self.seq_length * self.hidden_size if self.positions == "learned" else 0
        layer = layer_weights(self) + biases + 2 * norm
        return int(self.num_layers * layer + norm + tables * table_weights(self) + positions)


class OptimizerConfig(_Record):
    """AdamW with global gradient-norm clipping."""

    lr: float = Field(default=3e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    grad_clip: float = Field(default=1.0, ge=0, description="0: no clipping")


class Goldfish(_Record):
    """Tokens that are left out of the loss, so that the model cannot recite what it has read."""

    k: int = Field(default=4, ge=2, le=1_000_000, description="one token of so many is left out")
    h: int = Field(
        default=13, ge=1, le=1_000, description="tokens before it that decide whether it is"
    )
    mask: Literal["hashed", "static"] = Field(
        default="hashed",
        description="hashed: alike in every copy of a passage; static: the last of every k",
    )


class TrainConfig(_Record):
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
    goldfish: Goldfish | None = Field(
        default=None, description="leave tokens out of the loss; default none"
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
    load: str | None = Field(
        default=None,
        description="folder with checkpoints: go on from the latest complete one, in any layout, "
        "for warmup_steps + measured_steps more",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_memory_bytes: int | None = Field(
        default=None, ge=1, le=2**60, description="memory limit per rank; default the device's own"
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
        if self.engine == "deepspeed" and (self.save or self.load):
            raise ValueError("engine deepspeed has no checkpoints here: remove save and load")
        return self

    @model_validator(mode="after")
    def _whole_loss(self) -> TrainConfig:
        if self.engine == "deepspeed" and self.goldfish is not None:
            raise ValueError("engine deepspeed has no goldfish loss here: remove goldfish")
        return self

    def layers_of(self, stage: int) -> range:
        """The numbers of a stage's layers, of ``pp * vpp`` stages."""
        each = self.model.num_layers // (self.pp * self.vpp)
        return range(stage * each, (stage + 1) * each)

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
        return Axes({name: degrees.get(name, dp) for name in ordered(own)})

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
        dp = self.data_parallel(world_size)
        wishes = {name: getattr(self, name) for name in Wishes.__dataclass_fields__}
        try:
            return place(
                self.placement or STAGES[self.zero_stage],
                Wishes(**wishes),
                dp,
                self.tp * self.gx * self.gy * self.gz,
                self.topology(world_size, local_world_size),
                Format(self.precision),
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
        own |= {"compile", "tune_kernels"}
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
