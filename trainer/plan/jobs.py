"""Training jobs as columns, one job per row, for axes, exchanges and the cost model. Torch-free.

A space has one model and many configurations; a published sweep has a model per row. Both are
columns, so every formula is written once and evaluated for all rows together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from trainer.plan import fields
from trainer.plan.annotations import codes_of
from trainer.plan.axes import mesh
from trainer.plan.axes.mesh import PRICED_AXES, Axes
from trainer.plan.column import ColumnType, Part, broadcast, column, concatenated, mask
from trainer.plan.layouts import NO_LAYOUT
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Latent, Mixture
from trainer.plan.states import BUCKET_ELEMENTS, ZERO_STAGES

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]

RECOMPUTE = codes_of(fields.Choices, "recompute")
NONE, SELECTIVE, FULL = RECOMPUTE.values()
MODULES = "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
NO_MODULES = "none"  # the framework's habit
SCHEDULES = codes_of(fields.Choices, "pipeline_schedule")
ONE_F_ONE_B, BREADTH_FIRST = SCHEDULES["1F1B"], SCHEDULES["LoopedBFS"]
ZERO_BUBBLE, ZERO_BUBBLE_V = SCHEDULES["InterleavedZeroBubble"], SCHEDULES["ZBVZeroBubble"]
_DEFERRING = [SCHEDULES[word] for word in fields.DEFERRING_SCHEDULES]
DISPATCHERS = codes_of(fields.OtherChoices, "moe_token_dispatcher")
ALL_TO_ALL, FLEX = DISPATCHERS.values()
BY_HABIT = -1
GRAPHS = codes_of(fields.OtherChoices, "cuda_graphs")
NO_GRAPHS, LAYER_GRAPHS, STEP_GRAPHS = GRAPHS.values()
FULL_TUNING, LORA, QLORA = codes_of(fields.OtherChoices, "tuning").values()
ADAPTED_TARGETS = codes_of(fields.OtherChoices, "lora_targets")


@dataclass(frozen=True)
class Shape(Part):
    """Model shape, under the names of ``ModelConfig``."""

    num_layers: Array = column(least=1)
    hidden_size: Array = column(least=1)
    num_heads: Array = column()  # a, attention heads
    # channels of all queries: h unless heads have their own size; with latent attention the mean of
    # keys and values
    attention_size: Array = column()
    kv_heads: Array = column()  # groups of grouped-query attention, else ``num_heads``
    ffn_size: Array = column()  # f, inner size of the feed-forward part
    gated: Mask = mask(None)  # SwiGLU: two projections up instead of one
    vocab_size: Array = column()
    seq_length: Array = column()
    # keys per query, masked ones included: s, or less with sliding windows
    attended: Array = column()
    tied_embeddings: Mask = mask(None)  # the output layer is the embedding
    mixture: Mixture | None = None  # experts; None if no job has any
    latent: Latent | None = None  # None if no job has it

    @property
    def head_dim(self) -> Array:
        """Channels per attention head."""
        return self.attention_size / self.num_heads


@dataclass(frozen=True)
class Layout(Part):
    """Parallel degrees and batch sizes."""

    world_size: Array = column()  # GPUs, ``tp * cp * gy * gz * dp * pp``
    tp: Array = column(least=1)  # tensor parallelism; the grid's first axis ``gx`` counts as it
    cp: Array = column(1, least=1)
    on_grid: Mask = mask()  # ``tp`` is the grid's first axis
    # the grid's second and third axis
    gy: Array = column(1, least=1)
    gz: Array = column(1, least=1)
    pp: Array = column(least=1)
    vpp: Array = column(1, least=1)  # model chunks per pipeline rank
    dp: Array = column(least=1)  # data-parallel replicas
    # expert parallelism, over ranks of ``dp`` and ``cp``: no factor of ``world_size``
    ep: Array = column(1, least=1)
    etp: Array = column(least=1)  # tensor parallelism of experts
    mbs: Array = column(least=1)  # sequences per micro-batch and replica
    gas: Array = column(least=1)  # micro-batches per step and replica
    pp_inside: Mask = mask()  # stages are numbered before ``cp`` and ``dp`` (see ``Axes``)
    further: Mapping[str, Array] = field(default_factory=dict)  # degrees of other axes of the mesh

    @cached_property
    def axes(self) -> Axes:
        own = {**self.stored(), **self.further}
        return Axes({name: own[name] for name in mesh.ordered(PRICED_AXES)}, self.pp_inside)

    @cached_property
    def replicas(self) -> Array:
        """Ranks that hold the same weights."""
        return np.asarray(self.axes.replicas)

    @cached_property
    def layer_ranks(self) -> Array:
        """Ranks that split a layer's weights by model parallelism."""
        return np.asarray(self.axes.product(mesh.SPLIT_WEIGHTS))

    @cached_property
    def token_ranks(self) -> Array:
        """Ranks that split a micro-batch's tokens."""
        return np.asarray(self.axes.product(mesh.SPLIT_TOKENS))


@dataclass(frozen=True)
class StatePlacement(Part):
    """Sharding of training states over the ranks with the same weights."""

    # degrees; 1: replicated
    weight_shard: Array = column()
    gradient_shard: Array = column()
    optimizer_shard: Array = column()
    secondary_shard: Array = column(0)  # degree of the secondary copy (hpZ); 0: no copy
    # bits per element in the collective or the copy, scales included; 0: the framework's habit
    gather_bits: Array = column(0)
    reduce_bits: Array = column(0)
    secondary_bits: Array = column(0)
    zero_stage: Array = column(-1)  # 0 to 3 if the job is stated as a ZeRO stage, else -1
    # the secondary copy is refreshed in every micro-batch, not once a step
    renews_copy: Mask = mask()
    # sharded gradients are reduced once a step, not after each micro-batch
    reduces_once: Mask = mask()


@dataclass(frozen=True)
class Stages(Part):
    """Pipeline stage settings, as in ``trainer.plan.stages.StageLayers``."""

    first_stage_layers: Array = column(0)  # 0, here and below: an equal share
    last_stage_layers: Array = column(0)
    # layers that either counts as; -1: the framework's habit
    account_for_embedding: Array = column(-1)
    account_for_loss: Array = column(-1)
    # layers of all stages as text, in place of the others; or ``none``
    pipeline_layout: NDArray[np.str_] = column(NO_LAYOUT, str)


@dataclass(frozen=True)
class Options(Part):
    """How to compute, beside the degrees."""

    sequence_parallel: Mask = mask()  # Korthikanti et al. 2022
    # NONE, SELECTIVE (attention core, or ``recompute_modules``) or FULL (all but a layer's input)
    recompute: Array = column(NONE)
    recompute_modules: NDArray[np.str_] = column(NO_MODULES, str)  # of MODULES, by commas
    schedule: Array = column(ONE_F_ONE_B)  # pipeline schedule; ONE_F_ONE_B is plain or interleaved
    element_bytes: Array = column(2)  # of weights and activations in the computation: 2 or 4
    fp8: Mask = mask()  # layers' products are in 8 bits
    masks_documents: Mask = mask()  # attention separates documents
    compiled: Mask = mask()  # layers are compiled by torch's compiler
    # parameters per flat gradient bucket, if stated
    bucket_elements: Array = column(BUCKET_ELEMENTS)
    fused_loss: Mask = mask()  # fused cross entropy, which makes no float32 copies of the logits
    chunked_loss: Mask = mask()  # fused with the output layer, too: few tokens or words at a time
    flash_attention: Array = column(BY_HABIT)  # scores never reach memory: 1, 0, or BY_HABIT
    # ALL_TO_ALL sends a token once per expert; FLEX once per node, and from there once per rank;
    # BY_HABIT is the framework's own
    dispatcher: Array = column(BY_HABIT)
    overlaps_dispatch: Mask = mask()  # token dispatch runs behind another micro-batch's layers
    # CUDA graphs: NO_GRAPHS, LAYER_GRAPHS (layers without experts) or STEP_GRAPHS
    graphs: Array = column(NO_GRAPHS)
    # index of the framework, where a space has several; see ``CostModel.others``
    engine: Array = column(0)
    # other columns that the trainer's fields declare (``trainer.plan.fields``)
    further: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> NDArray[Any]:
        try:
            return vars(self)["further"][name]
        except KeyError:
            raise AttributeError(f"no option {name!r}: declare its column") from None


@dataclass(frozen=True)
class Jobs:
    """Training jobs, one per row, in parts."""

    model: Shape
    layout: Layout
    placement: StatePlacement
    stages: Stages
    options: Options

    def __len__(self) -> int:
        return int(self.layout.tp.size)

    def __getitem__(self, rows: Any) -> Jobs:
        """Jobs selected by a mask, slice or index array."""
        return Jobs(**{name: getattr(self, name).rows(rows) for name in _PARTS})

    def columns(self) -> dict[str, Array]:
        """All numeric columns by name, including those of mixtures and latent attention."""
        found: dict[str, Array] = {}
        for part in (getattr(self, name) for name in _PARTS):
            for name, value in part.stored().items():
                if isinstance(value, np.ndarray) and value.dtype.kind != "U":
                    found[name] = np.asarray(value, np.float64)
                elif isinstance(value, dict):
                    found |= {key: np.asarray(own, np.float64) for key, own in value.items()}
        for name in _FEW:
            if (few := getattr(self.model, name)) is not None:
                found |= {f"{name}.{key}": value for key, value in few._asdict().items()}
        return found

    @cached_property
    def folded(self) -> Mask:
        """Whether the schedule places the first and the last stage on the same pipeline rank."""
        return np.asarray((self.options.schedule == ZERO_BUBBLE_V) & (self.layout.pp > 1))

    @cached_property
    def defers_weight_gradients(self) -> Mask:
        """Whether weight gradients are computed apart from input gradients."""
        return np.isin(self.options.schedule, _DEFERRING)

    @cached_property
    def tokens(self) -> Array:
        """Tokens per micro-batch and rank."""
        return self.layout.mbs * self.model.seq_length / self.layout.token_ranks

    @cached_property
    def activation_bytes(self) -> Array:
        """Bytes of a micro-batch's hidden states between layers, sequences whole over ``tp``."""
        width = self.model.hidden_size / self.layout.gy
        return self.tokens * width * self.options.element_bytes

    @cached_property
    def gather_bytes(self) -> Array:
        """Bytes per weight in an all-gather."""
        bits = self.placement.gather_bits
        return np.where(bits > 0, bits / 8, self.options.element_bytes)

    @cached_property
    def masks_scores(self) -> Mask:
        """Whether a mask separates documents: kernels for packed documents need 16 bits and heads
        whose size is a multiple of 8."""
        head, latent = self.model.head_dim, self.model.latent
        if latent is not None:
            own = latent.key_size + latent.rotary_size
            head = np.where(latent.key_value_rank > 0, own, head)
        packed = (self.options.element_bytes <= 2) & (head % 8 == 0)
        return np.asarray(self.options.masks_documents & ~packed)

    @cached_property
    def repeats_layers(self) -> Mask:
        """Whether full recomputation is on."""
        return np.asarray(self.options.recompute == FULL)

    def repeats(self, module: str, otherwise: bool = False) -> Mask:
        """Whether selective recomputation repeats a module; ``otherwise`` if none are stated."""
        texts = self.options.recompute_modules
        if (none := np.asarray(texts == NO_MODULES)).all():
            return none & otherwise
        listed = np.char.find(np.char.add(np.char.add(",", texts), ","), f",{module},") >= 0
        return np.where(none, otherwise, listed)

    @cached_property
    def modules(self) -> list[Array]:
        """For each of MODULES, 1 where selective recomputation departs from its habit, else 0."""
        usual = {name: name == "core_attn" for name in MODULES}
        some = self.options.recompute == SELECTIVE
        return [1.0 * (some & (self.repeats(name, u) != u)) for name, u in usual.items()]

    @cached_property
    def repeats_core(self) -> Mask:
        """Whether the backward pass repeats attention's core, unless products are kept."""
        return self.repeats_layers | (self.options.recompute > 0) & self.repeats("core_attn", True)

    @cached_property
    def global_batch(self) -> Array:
        """Sequences per step over all replicas."""
        return self.layout.mbs * self.layout.gas * self.layout.dp

    @cached_property
    def reductions(self) -> Array:
        """Reductions of sharded gradients per step."""
        return np.where(self.placement.reduces_once, 1.0, self.layout.gas)

    @cached_property
    def recompute_words(self) -> NDArray[np.str_]:
        """Recomputation, in the words of ``TrainConfig``."""
        return np.array([*RECOMPUTE])[self.options.recompute.astype(int)]


_PARTS: Mapping[str, Any] = get_type_hints(Jobs)
_FEW = ("mixture", "latent")
"""Records of columns inside the model's shape."""
_DECLARED: dict[str, dict[str, ColumnType]] = {
    name: part.declared() for name, part in _PARTS.items()
}
_FURTHER = {
    "layout": {
        name: ColumnType(1, least=1) for name in PRICED_AXES if name not in _DECLARED["layout"]
    },
    "options": {
        name: ColumnType(*one)
        for name, one in fields.further_columns({n for p in _DECLARED.values() for n in p}).items()
    },
}
"""Columns without a field of a part: degrees of further axes, and declared options."""
_EVERY = {
    name: one for part in (*_DECLARED.values(), *_FURTHER.values()) for name, one in part.items()
}


def jobs(columns: Mapping[str, Any], model: ModelConfig | None = None) -> Jobs:
    """Jobs from columns or scalars that broadcast against each other.

    Args:
        columns: by field name of any part. ``zero_stage`` may replace the shard degrees; one of
            ``dp`` and ``world_size`` follows from the other.
        model: supplies the shape where the columns do not.

    Raises ValueError if a column is missing, or a degree is below 1; names it.
    """
    given = {name: one.default for name, one in _EVERY.items() if one.default is not None}
    if model is not None:
        given |= {name: getattr(model, name) for name in (*_DECLARED["model"], *_FEW)}
    given |= columns
    given.setdefault("etp", given.get("tp"))
    given.setdefault("attention_size", given.get("hidden_size"))
    given.setdefault("attended", given.get("seq_length"))
    given = _with_ranks(given)
    if "weight_shard" not in given:
        stage, dp, cp = (np.asarray(given[name]) for name in ("zero_stage", "dp", "cp"))
        for name, first in ZERO_STAGES.items():
            given.setdefault(name, np.where(stage >= first, dp * cp, 1))
    if missing := [name for name in _EVERY if given.get(name) is None]:
        raise ValueError(f"jobs need the columns {', '.join(missing)}")
    arrays = [np.atleast_1d(np.asarray(given[name], one.dtype)) for name, one in _EVERY.items()]
    whole: dict[str, Any] = dict(zip(_EVERY, np.broadcast_arrays(*arrays), strict=True))
    for name, one in _EVERY.items():
        if one.least is not None and np.any(~(whole[name] >= one.least)):
            raise ValueError(f"{name} must be {one.least} or more in every job")
    made: dict[str, dict[str, Any]] = {
        part: {name: whole[name] for name in names} for part, names in _DECLARED.items()
    }
    made["model"] |= {name: broadcast(given.get(name), whole["tp"].shape) for name in _FEW}
    for part, names in _FURTHER.items():
        made[part]["further"] = {name: whole[name] for name in names}
    return Jobs(**{part: cls(**made[part]) for part, cls in _PARTS.items()})


def joined(parts: Sequence[Jobs]) -> Jobs:
    """Jobs of several records, end to end."""
    made: dict[str, Any] = {}
    for part, cls in _PARTS.items():
        several = [getattr(one, part) for one in parts]
        sizes = [len(one) for one in parts]
        columns = {name: [getattr(one, name) for one in several] for name in several[0].stored()}
        made[part] = cls(**{name: concatenated(own, sizes) for name, own in columns.items()})
    return Jobs(**made)


def _with_ranks(given: Mapping[str, Any]) -> dict[str, Any]:
    """The columns with both ``dp`` and ``world_size``."""
    made = dict(given)
    if "dp" not in made:
        degrees = {name: np.asarray(made[name]) for name in mesh.beside_dp(PRICED_AXES)}
        made["dp"] = np.asarray(made["world_size"]) / mesh.ranks_of_replica(degrees, PRICED_AXES)
    if "world_size" not in made:
        sizes = {name: np.asarray(made[name]) for name in mesh.ordered(PRICED_AXES)}
        made["world_size"] = Axes(sizes).world_size
    return made
