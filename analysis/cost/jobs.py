"""Training jobs as columns: what the cost model is asked about, one job per row.

A space has its model once and many configurations; a published sweep has a model per row. Both are
columns here, so a formula is written once and computed for all rows together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from search_spaces import NO_LAYOUT
from trainer.plan.annotations import codes_of
from trainer.plan.axes import FURTHER_AXES, Axes, beside_dp, ordered, ranks_of_replica
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Latent, Mixture
from trainer.plan.states import BUCKET_ELEMENTS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

PRICED_AXES = ("gy", "gz", *FURTHER_AXES)
"""Axes that the cost model knows besides those that every job has; the grid's gx counts as tp."""
RECOMPUTE = codes_of(Choices, "recompute")
NONE, SELECTIVE, FULL = RECOMPUTE.values()
SCHEDULES = codes_of(Choices, "pipeline_schedule")
ONE_F_ONE_B, BREADTH_FIRST, ZERO_BUBBLE, ZERO_BUBBLE_V, DUAL_PIPE_V = SCHEDULES.values()
DISPATCHERS = codes_of(OtherChoices, "moe_token_dispatcher")
ALL_TO_ALL, FLEX = DISPATCHERS.values()
BY_HABIT = -1
GRAPHS = codes_of(OtherChoices, "cuda_graphs")
NO_GRAPHS, LAYER_GRAPHS, STEP_GRAPHS = GRAPHS.values()


@dataclass(frozen=True)
class Jobs:
    """Columns of shape (n,); numbers are float64, so that products of sizes cannot overflow.

    Shape of the model, under the names of ``ModelConfig``:

    Attributes:
        num_layers: transformer layers of the whole model.
        hidden_size: h.
        num_heads: a, attention heads.
        attention_size: channels of all their queries: h, unless heads have a size of their own;
            of latent attention the mean of keys' and values'.
        kv_heads: groups of grouped-query attention; equals ``num_heads`` without.
        ffn_size: f, inner size of the feed-forward part.
        gated: SwiGLU: two projections up instead of one.
        vocab_size: V.
        seq_length: s, tokens.
        attended: keys of each query, masked ones included: s, or fewer where layers have windows.
        tied_embeddings: the output layer is the embedding.

    Parallelism:

    Attributes:
        world_size: GPUs, ``tp * cp * gy * gz * dp * pp``.
        tp, cp, pp, vpp, dp: degrees; ``vpp`` is model chunks per pipeline rank, ``cp`` of context
            parallelism, which splits every sequence.
        gy, gz: of the grid's second and third axis; its first, ``gx``, splits a layer as ``tp``
            does and is counted as that.
        ep: ranks over which a layer's experts are dealt out; of those of ``dp`` and ``cp``, so
            that it is no factor of ``world_size``.
        etp: ranks that split each expert's matrices.
        mbs: sequences per micro-batch and replica.
        gas: micro-batches per step and replica.
        sequence_parallel: of tensor parallelism, as Korthikanti et al. 2022.
        recompute: NONE, SELECTIVE (the attention core) or FULL (all but a layer's input).
        pp_inside: stages stand inside the ranks of ``cp`` and ``dp``, as ``trainer.Axes`` has it.
        schedule: of a pipeline: ONE_F_ONE_B, plain or interleaved, BREADTH_FIRST, ZERO_BUBBLE,
            ZERO_BUBBLE_V or DUAL_PIPE_V.

    Stages of the pipeline (see ``search_spaces.StageSettings``):

    Attributes:
        first_stage_layers, last_stage_layers: layers of that stage; 0 is its share.
        account_for_embedding, account_for_loss: layers that either counts as; -1 is the
            framework's habit.
        pipeline_layout: the layers of all stages in place of these, as a text; ``none`` is none.

    Placement over the data-parallel ranks (see ``trainer.plan.placement``):

    Attributes:
        weight_shard, gradient_shard, optimizer_shard: degrees; 1 is not split.
        secondary_shard: degree of the nearer copy of the weights; 0 is no copy.
        gather_bits, reduce_bits, secondary_bits: of one element on its way, or in the copy, scales
            included; 0 stands for the framework's habit.
        zero_stage: 0 to 3 where the job says it in ZeRO's words, else -1.
        reduces_once: split gradients are summed whole and reduced once a step, not behind each
            micro-batch.
        element_bytes: of weights and activations in the computation: 2 or 4.
        fp8: the layers' matrix products are computed in 8 bits.
        masks_documents: attention takes a mask that keeps documents apart.
        bucket_elements: parameters of a flat bucket of gradients, where the job says it.
        fused_loss: one kernel, which leaves the logits' gradient in their own place.
        dispatcher: how tokens are sent to experts: ALL_TO_ALL, once to each; FLEX, once to each
            node, and from there once to each rank; BY_HABIT, the framework's own way.
        overlaps_dispatch: that happens behind the layers of another micro-batch.
        graphs: CUDA graphs, whose kernels the host launches at once: NO_GRAPHS; LAYER_GRAPHS, of a
            layer without its experts; STEP_GRAPHS, of the whole step.
        engine: number of the model, where a space has several; see ``CostModel.others``.

    What few models have; None where no job's has it:

    Attributes:
        mixture: experts in place of feed-forward parts.
        latent: latent attention.
    """

    num_layers: Array
    hidden_size: Array
    num_heads: Array
    attention_size: Array
    kv_heads: Array
    ffn_size: Array
    gated: Mask
    vocab_size: Array
    seq_length: Array
    attended: Array
    tied_embeddings: Mask
    world_size: Array
    tp: Array
    cp: Array
    gy: Array
    gz: Array
    pp: Array
    vpp: Array
    dp: Array
    ep: Array
    etp: Array
    mbs: Array
    gas: Array
    sequence_parallel: Mask
    recompute: Array
    pp_inside: Mask
    schedule: Array
    first_stage_layers: Array
    last_stage_layers: Array
    account_for_embedding: Array
    account_for_loss: Array
    pipeline_layout: NDArray[np.str_]
    weight_shard: Array
    gradient_shard: Array
    optimizer_shard: Array
    secondary_shard: Array
    gather_bits: Array
    reduce_bits: Array
    secondary_bits: Array
    zero_stage: Array
    reduces_once: Mask
    element_bytes: Array
    fp8: Mask
    masks_documents: Mask
    bucket_elements: Array
    fused_loss: Mask
    dispatcher: Array
    overlaps_dispatch: Mask
    graphs: Array
    engine: Array
    mixture: Mixture | None = None
    latent: Latent | None = None

    def __len__(self) -> int:
        return int(self.tp.size)

    def __getitem__(self, rows: Any) -> Jobs:
        """The jobs that a mask, a slice or an array of indices selects."""
        own = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Jobs(**own, mixture=_rows(self.mixture, rows), latent=_rows(self.latent, rows))

    def columns(self) -> dict[str, Array]:
        """All numbers among them, by name, those of mixtures and latent attention too."""
        numbers = [name for name in _COLUMNS if name not in _TEXTS]
        found = {name: np.asarray(getattr(self, name), np.float64) for name in numbers}
        for key, few in (("mixture", self.mixture), ("latent", self.latent)):
            if few is not None:
                found |= {f"{key}.{name}": value for name, value in few._asdict().items()}
        return found

    @property
    def axes(self) -> Axes:
        """The parallel axes and their sizes."""
        return Axes({name: getattr(self, name) for name in ordered(PRICED_AXES)}, self.pp_inside)

    @property
    def state_axes(self) -> Axes:
        """The same with one axis ``dp`` of all ranks that hold the same weights."""
        return self.axes.of_states

    @property
    def layer_ranks(self) -> Array:
        """Ranks that split a layer's weights, whatever the placement."""
        return self.tp * self.gy * self.gz

    @property
    def folded(self) -> Mask:
        """Where the first of several pipeline ranks has the last stage as well."""
        return np.asarray((self.schedule >= ZERO_BUBBLE_V) & (self.pp > 1))

    @property
    def replicas(self) -> Array:
        """Ranks that hold the same weights."""
        return self.dp * self.cp

    @property
    def tokens(self) -> Array:
        """Of one micro-batch, on one rank of context parallelism and of the grid's third axis."""
        return self.mbs * self.seq_length / (self.cp * self.gz)

    @property
    def global_batch(self) -> Array:
        """Sequences per step over all replicas."""
        return self.mbs * self.gas * self.dp

    @property
    def head_dim(self) -> Array:
        """Channels of one attention head."""
        return self.attention_size / self.num_heads

    @property
    def reductions(self) -> Array:
        """Times that split gradients are reduced in a step."""
        return np.where(self.reduces_once, 1.0, self.gas)

    @property
    def recompute_words(self) -> NDArray[np.str_]:
        """What is recomputed, as ``TrainConfig`` says it."""
        words: NDArray[np.str_] = np.array([*RECOMPUTE])[self.recompute.astype(int)]
        return words


Few = TypeVar("Few", Mixture, Latent)


def _rows(few: Few | None, rows: Any) -> Few | None:
    return None if few is None else type(few)(*(column[rows] for column in few))


_COLUMNS = [f.name for f in fields(Jobs) if f.name not in ("mixture", "latent")]
_MASKS = {
    *("gated", "tied_embeddings", "sequence_parallel", "reduces_once", "fp8"),
    *("overlaps_dispatch", "pp_inside", "masks_documents", "fused_loss"),
}
_TEXTS = {"pipeline_layout"}
_DEFAULTS: dict[str, Any] = {
    "cp": 1,
    "gy": 1,
    "gz": 1,
    "ep": 1,
    "vpp": 1,
    "recompute": NONE,
    "pp_inside": 0,
    "schedule": ONE_F_ONE_B,
    "sequence_parallel": 0,
    "first_stage_layers": 0,
    "last_stage_layers": 0,
    "account_for_embedding": -1,
    "account_for_loss": -1,
    "pipeline_layout": NO_LAYOUT,
    "secondary_shard": 0,
    "gather_bits": 0,
    "reduce_bits": 0,
    "secondary_bits": 0,
    "zero_stage": -1,
    "reduces_once": 0,
    "element_bytes": 2,
    "fp8": 0,
    "masks_documents": 0,
    "bucket_elements": BUCKET_ELEMENTS,
    "fused_loss": 0,
    "dispatcher": BY_HABIT,
    "overlaps_dispatch": 0,
    "graphs": NO_GRAPHS,
    "engine": 0,
}


def jobs(columns: Mapping[str, Any], model: ModelConfig | None = None) -> Jobs:
    """Jobs from columns or scalars that broadcast against each other.

    Args:
        columns: by field name; ``zero_stage`` may stand in for the shard degrees. ``dp`` or
            ``world_size`` may be left out, since one follows from the other.
        model: gives the shape where the columns do not.

    Raises:
        ValueError: if a field is missing, or a degree is below 1; it names the field.
    """
    given: dict[str, Any] = {**_DEFAULTS}
    if model is not None:
        given |= {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_heads": model.num_heads,
            "attention_size": model.attention_size,
            "kv_heads": model.kv_heads,
            "ffn_size": model.ffn_size,
            "gated": model.activation == "swiglu",
            "vocab_size": model.vocab_size,
            "seq_length": model.seq_length,
            "attended": model.attended,
            "tied_embeddings": model.tied_embeddings,
            "mixture": model.mixture,
            "latent": model.latent,
        }
    given |= columns
    given.setdefault("etp", given.get("tp"))
    given.setdefault("attention_size", given.get("hidden_size"))
    given.setdefault("attended", given.get("seq_length"))
    few = {name: given.pop(name, None) for name in ("mixture", "latent")}
    if "dp" not in given:
        degrees = {name: np.asarray(given[name]) for name in beside_dp(PRICED_AXES)}
        replica = ranks_of_replica(degrees, PRICED_AXES)
        given["dp"] = np.asarray(given["world_size"]) / replica
    if "world_size" not in given:
        sizes = {name: np.asarray(given[name]) for name in ordered(PRICED_AXES)}
        given["world_size"] = Axes(sizes).world_size
    given = {**_shards(given), **given}
    if missing := [name for name in _COLUMNS if given.get(name) is None]:
        raise ValueError(f"jobs need the columns {', '.join(missing)}")
    types: dict[str, Any] = {**dict.fromkeys(_MASKS, bool), **dict.fromkeys(_TEXTS, str)}
    arrays = [np.asarray(given[name], dtype=types.get(name, np.float64)) for name in _COLUMNS]
    whole = np.broadcast_arrays(*[np.atleast_1d(array) for array in arrays])
    made = Jobs(
        **dict(zip(_COLUMNS, whole, strict=True)),
        mixture=_columns(few["mixture"], whole[0].shape),
        latent=_columns(few["latent"], whole[0].shape),
    )
    for name in (
        "tp",
        "cp",
        "gy",
        "gz",
        "pp",
        "vpp",
        "dp",
        "ep",
        "etp",
        "mbs",
        "gas",
        "num_layers",
        "hidden_size",
    ):
        if np.any(~(getattr(made, name) >= 1)):
            raise ValueError(f"{name} must be 1 or more in every job")
    return made


def joined(parts: Sequence[Jobs]) -> Jobs:
    """The jobs of several records, one after the other."""
    own = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}

    def few(key: str, kind: type[Few]) -> Few | None:
        records = [getattr(part, key) for part in parts]
        if not any(records):
            return None
        without = [kind(*np.zeros((len(kind._fields), len(part)))) for part in parts]
        filled = [record or none for record, none in zip(records, without, strict=True)]
        return kind(*(np.concatenate(columns) for columns in zip(*filled, strict=True)))

    return Jobs(**own, mixture=few("mixture", Mixture), latent=few("latent", Latent))


def _columns(few: Few | None, shape: tuple[int, ...]) -> Few | None:
    if few is None:
        return None
    return type(few)(*(np.broadcast_to(np.asarray(size, np.float64), shape) for size in few))


def _shards(given: Mapping[str, Any]) -> dict[str, Any]:
    """Degrees of the stages of ZeRO (Rajbhandari et al. 2020)."""
    if "weight_shard" in given:
        return {}
    stage = np.asarray(given["zero_stage"])
    replicas = np.asarray(given["dp"]) * np.asarray(given["cp"])
    return {
        "weight_shard": np.where(stage >= 3, replicas, 1),
        "gradient_shard": np.where(stage >= 2, replicas, 1),
        "optimizer_shard": np.where(stage >= 1, replicas, 1),
    }
