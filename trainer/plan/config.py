"""One training run: the model's shape and how it is trained.

Torch-free, so that the search and the cost model read the same record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from foundation.files import FileError, read_json
from foundation.records import mistakes
from trainer.plan.axes import mesh
from trainer.plan.fields import DEFERRING_SCHEDULES, FOLDED_SCHEDULE, Choices, Settings
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError, Ranks, Steps
from trainer.plan.model import ModelConfig
from trainer.plan.placement import Placement, Topology
from trainer.plan.presets import ZERO_PRESETS, place
from trainer.plan.rules.catalog import refused_settings, requirements
from trainer.plan.rules.expression import Scalar
from trainer.plan.rules.requirement import QUANTIZED, Requirement, refusal
from trainer.plan.stages import StageLayout
from trainer.plan.states import DEGREES


class TrainConfig(Settings, Choices):
    """Everything ``python -m trainer CONFIG.json`` needs; ``dp`` follows from the ranks."""

    model: ModelConfig
    warmup_steps: int = Field(default=2, ge=0, le=1_000_000_000)
    measured_steps: Steps = 5
    ranks_per_node: Ranks | None = None
    """default what the launcher says (LOCAL_WORLD_SIZE)"""
    ranks_per_pair: Ranks = 1
    """ranks on one card: 2 on MI250X, whose dies are devices"""

    @model_validator(mode="after")
    def _agrees(self) -> TrainConfig:
        if self.placement is not None and self.zero_stage:
            raise ValueError(
                f"placement {self.placement} and zero_stage {self.zero_stage}: give one of them"
            )
        if self.last_save_in_hf:
            kind = self.model.model_type()  # refuses other models before the first step
            if (rate := self.moe_router_bias_update_rate) and kind != "deepseek_v3":
                raise ValueError(
                    f"last_save_in_hf beside moe_router_bias_update_rate {rate}: mixtures there "
                    "choose experts without a bias; set it to 0"
                )
        for reason in refused_settings(self, self.engine).values():
            raise ValueError(f"engine {self.engine}: {reason}")
        model, masks = self.model, self.documents and self.documents.reset_attention_mask
        if model.windowed_layers and masks:
            raise ValueError(
                f"windowed_layers {model.windowed_layers} beside documents: the mask of a window "
                "does not separate them; set documents' reset_attention_mask: false"
            )
        if model.layer_types.count("sliding_attention") != model.windowed_layers:
            raise ValueError(
                f"windowed_layers {model.windowed_layers} of num_layers {model.num_layers}: every "
                "n-th layer must have full attention; set the number of the others"
            )
        if self.cp > 1 and self.splits_samples:
            raise ValueError(
                f"documents with cp {self.cp}: ring attention sees whole samples; set cp: 1, or "
                "reset_attention_mask and reset_position_ids: false"
            )
        for name in ("moe_aux_loss_coeff", "moe_router_bias_update_rate"):
            if getattr(self, name) and not self.model.num_experts:
                raise ValueError(f"{name} without experts: set the model's num_experts, or 0 here")
        if self.moe_aux_loss_coeff and self.masks_loss:
            raise ValueError(
                "moe_aux_loss_coeff beside tokens that are left out of the loss (goldfish, "
                "loss_mask, eod_mask_loss): their share would scale this loss, too; set it to 0"
            )
        return self

    @property
    def format(self) -> Format:
        """Storage and communication format of weights and activations."""
        return Format(self.precision)

    @property
    def sums_whole_gradients(self) -> bool:
        """Whether sharded gradients accumulate whole until the last micro-batch."""
        return self.reduce_gradients == "step" and self.gas > 1

    @property
    def defers_weight_gradients(self) -> bool:
        """Whether weight gradients are computed apart from input gradients."""
        return self.pp > 1 and self.pipeline_schedule in DEFERRING_SCHEDULES

    @property
    def stages(self) -> StageLayout:
        """Pipeline stages; one without a pipeline."""
        folded = self.pp > 1 and self.pipeline_schedule == FOLDED_SCHEDULE
        first, last = self.first_stage_layers, self.last_stage_layers
        return StageLayout(self.pp, self.vpp, self.model.num_layers, first, last, folded)

    @property
    def keeps_products(self) -> bool:
        """Whether ``selective`` keeps matrix products and attention; else all but attention."""
        return self.cp == 1 and not self.grid_axes and not self.model.num_experts

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.measured_steps

    def lr(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        return self.optimizer.lr * self.lr_scheduler.factor(step)

    def data_parallel(self, world_size: int) -> int:
        """Data-parallel replicas; raises ConfigError if the degrees do not divide the ranks."""
        return int(self.axes(world_size).sizes["dp"])

    def axes(self, world_size: int) -> mesh.Axes:
        """Parallel axes and their sizes; raises ConfigError as ``data_parallel``."""
        own = [*self.grid_axes, *mesh.FURTHER_AXES]
        degrees = {name: getattr(self, name) for name in mesh.beside_dp(own)}
        if broken := refusal(self._requirements(), {"world_size": world_size, **degrees}):
            raise ConfigError(broken)
        dp = world_size // mesh.ranks_of_replica(degrees, own)
        sizes = {name: degrees.get(name, dp) for name in mesh.ordered(own)}
        return mesh.Axes(sizes, bool(mesh.is_pp_inside(self.rank_order)))

    @property
    def grid_axes(self) -> tuple[str, ...]:
        """Axes of the grid, all or none."""
        return tuple(mesh.GRID) if any(getattr(self, name) > 1 for name in mesh.GRID) else ()

    def _requirements(self) -> tuple[Requirement, ...]:
        further = [name for name in mesh.FURTHER_AXES if getattr(self, name) > 1]
        return requirements(*self.grid_axes, *further)

    def topology(self, world_size: int, local_world_size: int | None = None) -> Topology:
        """Ranks per node and pair: the configuration's, else the launcher's, else one node."""
        return Topology(self.ranks_per_node or local_world_size or world_size, self.ranks_per_pair)

    def place(self, world_size: int, local_world_size: int | None = None) -> Placement:
        """Placement of training states; raises ConfigError."""
        axes = self.axes(world_size)
        dp = axes.sizes["dp"]
        try:
            return place(
                self.placement or ZERO_PRESETS[self.zero_stage],
                {name: getattr(self, name) for name in (*DEGREES, *QUANTIZED)},
                dp,
                axes.of_states.stride("dp"),
                self.topology(world_size, local_world_size),
                self.format,
                Format(self.reduce_precision),
                cp=self.cp,
                gz=self.gz,
            )
        except ConfigError as error:
            raise ConfigError(f"{error} ({world_size} ranks, dp {dp})") from error

    def facts(self, world_size: int, local_world_size: int | None = None) -> dict[str, Scalar]:
        """Final values of all names that requirements read; raises ConfigError as ``place``."""
        placement = self.place(world_size, local_world_size)
        ranks_per_node = self.topology(world_size, local_world_size).ranks_per_node
        model = self.model
        return {
            **model.model_dump(exclude_none=True),
            "num_kv_heads": model.kv_heads,
            "ffn_hidden_size": model.ffn_size,
            "head_size": model.head_dim,
            **self.model_dump(include={*Choices.model_fields}, exclude_none=True),
            **{name: getattr(placement, name) for name in DEGREES},
            "quantize_weights": placement.gather_format == Format.INT8,
            "quantize_gradients": placement.reduce_format == Format.INT4,
            "quantize_secondary": placement.secondary_format == Format.INT8,
            "world_size": world_size,
            "dp": self.data_parallel(world_size),
            "gpus_per_node": ranks_per_node,
            "num_nodes": -(-world_size // ranks_per_node),  # the last one may be part-filled
        }

    def check(self, world_size: int, local_world_size: int | None = None) -> None:
        """Raise ConfigError if this trainer cannot run the configuration on so many ranks."""
        if broken := refusal(self._requirements(), self.facts(world_size, local_world_size)):
            raise ConfigError(broken)

    @classmethod
    def read(cls, path: Path) -> TrainConfig:
        """Read a JSON file; raises ConfigError with file, key and value."""
        try:
            return cls.parse(read_json(path))
        except FileError as error:
            raise ConfigError(str(error)) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, values: Any) -> TrainConfig:
        """Validate a mapping; raises ConfigError with keys and values."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(mistakes(error)) from error
