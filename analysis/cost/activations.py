"""What a micro-batch leaves in memory until its backward pass, and for how many at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from analysis.cost.experts import activation_bytes as expert_bytes, mixed_share
from analysis.cost.jobs import (
    BREADTH_FIRST,
    DUAL_PIPE_V,
    FULL,
    NONE,
    ONE_F_ONE_B,
    SELECTIVE,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    Array,
    Jobs,
    Mask,
)
from analysis.cost.stages import by_layers, layers_before, weighed
from search_spaces import NO_LAYOUT, Framework, parsed_layout


@dataclass(frozen=True)
class StageLoad:
    """One stage of each job's pipeline; columns of shape (n,).

    Attributes:
        layers: transformer layers on it.
        in_flight: micro-batches whose activations it keeps at once; a fraction where stages are
            interleaved, in which a chunk counts as its share of the stage.
        embedding: it looks tokens up.
        head: it computes logits and the loss.
    """

    layers: Array
    in_flight: Array
    embedding: Mask
    head: Mask


def fullest_stages(jobs: Jobs, framework: Framework) -> list[StageLoad]:
    """The first stage, the one after it, the one with the output layer, and where there are layouts
    each between them that has more layers, or other chunks, than those before it.

    Micro-batches in flight fall from stage to stage, so that no other stage needs more.
    """
    layers, pp = jobs.num_layers, jobs.pp
    one = pp == 1
    if framework.split == "by_weight":
        share, head_at = weighed(jobs)
        one_stage = np.ones(len(jobs))
        first = layers_before(jobs, share, one_stage)
        second = layers_before(jobs, share, 2 * one_stage) - first
        last = layers - layers_before(jobs, share, head_at)
        between = [(one_stage, second)]
    else:
        head_at = pp - 1
        split = by_layers(jobs, framework)
        first, between, last = split.first, split.between, split.last
    embedding = np.ones(len(jobs), dtype=bool)
    inner = [
        StageLoad(np.where(one, 0, number), _in_flight(jobs, at), ~embedding, ~embedding)
        for at, number in between
    ]
    return [
        StageLoad(np.where(one, layers, first), _in_flight(jobs, 0), embedding, one | jobs.folded),
        inner[0],
        StageLoad(np.where(one, layers, last), _in_flight(jobs, head_at), one, ~jobs.folded),
        *inner[1:],
    ]


def refused(jobs: Jobs, framework: Framework) -> Mask:
    """Jobs that a framework ends at start-up whatever their memory is.

    Some need pp - 1 micro-batches to fill a pipeline, and a block (embedding, layer, output layer,
    loss) on every stage; behind the output layer come two more blocks.
    """
    if not framework.fills_pipeline:
        return np.zeros(len(jobs), dtype=bool)
    _, head_at = weighed(jobs)
    empty = (jobs.pp > 1) & (head_at + 2 < jobs.pp - 1)
    return np.asarray((jobs.gas < jobs.pp - 1) | empty)


def _in_flight(jobs: Jobs, stage: Array | int) -> Array:
    """1F1B keeps ``pp - stage`` micro-batches (Narayanan et al. 2021, section 2.2).

    Interleaved, a rank runs ``2 (pp - stage - 1) + (vpp - 1) pp`` chunks ahead and keeps one more;
    on the first stage that is ``1 + (pp - 1) / (pp vpp)`` of a whole model's share (Korthikanti et
    al. 2022, section 4.2.3). Breadth-first, all forward passes come first (Lamy-Poirier
    2022). Zero bubble as torch has it delays the weights' products of stage s by s micro-batches,
    whose operands stay, so that every stage keeps pp. Folded, each rank keeps pp as well (Qi et al.
    2023, section 6), DualPipeV one chunk of two more.
    """
    plain = jobs.pp - stage
    chunks = 2 * (plain - 1) + (jobs.vpp - 1) * jobs.pp + 1
    kept = _of_unlike_chunks(jobs, stage, np.where(jobs.vpp > 1, chunks / jobs.vpp, plain))
    kept = np.where(jobs.schedule == ZERO_BUBBLE, np.maximum(kept, jobs.pp), kept)
    kept = np.where(jobs.schedule == ZERO_BUBBLE_V, jobs.pp, kept)
    kept = np.where(jobs.schedule == DUAL_PIPE_V, jobs.pp + 0.5, kept)
    kept = np.where(jobs.schedule == BREADTH_FIRST, jobs.gas, kept)
    # The forward pass that hides another one's tokens begins before that has ended.
    kept = kept + np.where(jobs.overlaps_dispatch, 1 / jobs.vpp, 0.0)
    return np.maximum(np.minimum(kept, jobs.gas), np.minimum(jobs.gas, 1))


def _of_unlike_chunks(jobs: Jobs, stage: Array | int, alike: Array) -> Array:
    """Micro-batches in flight where a layout gives chunks of a rank unlike numbers of layers.

    Args:
        jobs: of any stages.
        stage: its number.
        alike: micro-batches in flight if its chunks are alike.
    """
    rows = (jobs.pipeline_layout != NO_LAYOUT) & (jobs.vpp > 1)
    if not rows.any():
        return alike
    columns = (jobs.pipeline_layout, jobs.pp, jobs.gas, np.broadcast_to(stage, rows.shape))
    keys = list(zip(*(column[rows].tolist() for column in columns), strict=True))
    found = {key: _kept_by_order(*key) for key in set(keys)}
    kept = np.array(alike, dtype=float)
    kept[rows] = [
        own if own is not None else kept
        for own, kept in zip((found[key] for key in keys), alike[rows], strict=True)
    ]
    return kept


@lru_cache(maxsize=10_000)
def _kept_by_order(layout: str, pp: float, gas: float, stage: float) -> float | None:
    """What a rank keeps at most in the order in which Megatron-LM runs its chunks, in micro-batches
    of all its layers; None where they are alike, or it has no such rank.

    Forward passes run through pp micro-batches of each chunk in turn, backward passes likewise
    from the last chunk on; how far the former are ahead is as in :func:`_in_flight`.
    """
    ranks, rank = int(pp), int(stage)
    chunks = parsed_layout(layout).layers_of_chunks(ranks)
    if not 0 <= rank < len(chunks) or len(set(chunks[rank])) == 1:
        return None
    layers = chunks[rank]
    turn = ranks * len(layers)
    # Each turn is as the one before: three in all are enough to see the most.
    passes = int(min(gas * len(layers), 3 * turn))
    forward = [layers[i % turn // ranks] for i in range(passes)]
    backward = [layers[::-1][i % turn // ranks] for i in range(passes)]
    ahead = 2 * (ranks - rank - 1) + (len(layers) - 1) * ranks + 1
    kept = np.cumsum(forward)
    kept[ahead:] -= np.cumsum(backward)[: max(passes - ahead, 0)]
    return float(kept.max() / sum(layers))


def tokens(jobs: Jobs) -> Array:
    """Tokens of one micro-batch on one rank."""
    return jobs.tokens


def sequence_split(jobs: Jobs, framework: Framework) -> Array:
    """Ranks that split what tensor parallelism leaves whole: by sequence, or the grid by width."""
    always = framework.sequence_parallel
    return np.where(jobs.sequence_parallel | always, jobs.tp, jobs.gy)


def layer_bytes(jobs: Jobs, framework: Framework, recompute: Array) -> Array:
    """Activations that one layer keeps of one micro-batch.

    Korthikanti et al. 2022, Table 2, written for any feed-forward size, gated units and grouped
    queries, and without dropout masks where the framework keeps none or, as models with gated units
    are trained without, there are none. Of ``hidden_size`` elements
    a token: the inputs of two norms and of two matrix products stay whole without sequence
    parallelism; queries, keys, values and the attention's output are split by ``tp``. Models with
    gated units rotate queries and keys and keep both forms, unless layers are fused.
    """
    h, e, f = jobs.hidden_size, jobs.element_bytes, jobs.ffn_size
    queries = jobs.attention_size
    keys = queries * jobs.kv_heads / jobs.num_heads
    dropout = framework.masked_dropout & ~jobs.gated
    masks = np.where(dropout, 2.0 * h, 0.0)
    whole = (4 * e * h + masks) / sequence_split(jobs, framework)
    experts: Array | float = 0.0
    if jobs.mixture is not None:
        share = mixed_share(jobs, jobs.mixture)
        f = f + share * (jobs.mixture.shared_ffn_size - f)
        experts = share * expert_bytes(jobs, jobs.mixture, framework.fused_layers)
    fused = framework.fused_layers
    rotated = np.where(jobs.gated & ~np.asarray(fused), queries + keys, 0.0)
    split = e * (2 * queries + 2 * keys + rotated + np.where(jobs.gated, 3 if fused else 4, 2) * f)
    if framework.flash_attention:
        split = split + 4 * jobs.num_heads  # logarithm of the softmax's denominator, float32
    else:
        dropped = np.where(dropout, 1 + e, 0.0)
        scores = jobs.num_heads * jobs.attended * (e + dropped)
        split = split + np.where(recompute == NONE, scores, 0.0)
    kept = whole + split / jobs.tp
    only_input = e * h / sequence_split(jobs, framework)
    if framework.keeps_products == "second":
        # Outputs of the products for queries, values and gate, of attention, and of the last
        # product: over tp its whole sum's summands, and both sums.
        products = 4 * jobs.num_heads + e * (2 * queries + keys + f)
        sums = np.where(jobs.tp > 1, 2 * e * h / jobs.tp, 0.0)
        some = only_input + products / jobs.tp + e * h + sums
        kept = np.where(recompute == SELECTIVE, some, kept)
    if framework.keeps_products == "all":
        # Outputs of both products split by columns, of attention, and of its projection.
        up = np.where(jobs.gated, 2, 1) * f
        products = 4 * jobs.num_heads + e * (2 * queries + 2 * keys + up)
        some = 2 * only_input + products / jobs.tp
        some = np.where(repeats_attention(jobs, framework), kept, some)
        kept = np.where(recompute == SELECTIVE, some, kept)
    all_tokens = tokens(jobs)
    if jobs.mixture is not None:
        kept = kept + experts / all_tokens
    return all_tokens * np.where(recompute == FULL, only_input, kept)


def repeats_attention(jobs: Jobs, framework: Framework) -> Array:
    """Whether selective recomputation repeats attention, and not the rest of a layer.

    The built-in trainer keeps attention but for where keys go round or layers lie on a grid.
    """
    exchanges = (jobs.cp > 1) | (jobs.gy * jobs.gz > 1)
    return np.asarray(exchanges | (framework.keeps_products != "all"))


def embedding_bytes(jobs: Jobs, framework: Framework) -> Array:
    """What the embedding keeps of one micro-batch: its dropout mask (Korthikanti et al. 2022)."""
    masks = tokens(jobs) * jobs.hidden_size / sequence_split(jobs, framework)
    return np.where(framework.masked_dropout & ~jobs.gated, masks, 0.0)


def head_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Inputs of the last norm and of the output layer, of one micro-batch."""
    kept = 2 * jobs.element_bytes * jobs.hidden_size
    return tokens(jobs) * kept / sequence_split(jobs, framework)


def stage_output_bytes(jobs: Jobs, framework: Framework) -> Array:
    """What one stage sends to the next for one micro-batch."""
    return tokens(jobs) * jobs.element_bytes * jobs.hidden_size / sequence_split(jobs, framework)


def stage_bytes(stage: StageLoad, layer: Array, jobs: Jobs, framework: Framework) -> Array:
    """What a stage keeps of one micro-batch, logits apart, given what a layer does."""
    kept = stage.layers * layer + mask_bytes(jobs)
    kept = kept + np.where(stage.embedding, embedding_bytes(jobs, framework), 0.0)
    kept = kept + np.where(stage.head, head_bytes(jobs, framework), 0.0)
    if framework.keeps_outputs:
        kept = kept + np.where(stage.head, 0.0, stage_output_bytes(jobs, framework))
    return np.asarray(kept)


def mask_bytes(jobs: Jobs) -> Array:
    """What keeps documents apart in a micro-batch: a number for each score, once in each chunk."""
    scores = tokens(jobs) * jobs.seq_length
    return np.where(jobs.masks_documents, jobs.vpp * scores * jobs.element_bytes, 0.0)


def waiting_logits_bytes(jobs: Jobs, in_flight: Array) -> Array:
    """Logits, or their gradients, that wait on the last stage beside the one at work.

    1F1B needs each at once, and so do those in which one rank has both ends; the other schedules
    come back to the micro-batches in flight later.
    """
    one = tokens(jobs) * jobs.element_bytes * jobs.vocab_size / jobs.tp
    at_once = (jobs.schedule == ONE_F_ONE_B) | jobs.folded
    return np.where(at_once, 0.0, np.maximum(in_flight - 1, 0) * one)


def logits_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Logits of one micro-batch with all their copies, or with what stands for the output layer's
    gradient; the vocabulary is split by ``tp``.
    """
    e = jobs.element_bytes
    each = framework.logits_bytes + framework.logit_copies * e
    kept = tokens(jobs) * np.where(jobs.fused_loss, e, each)
    if framework.placeholder_gradients:
        # The loss is behind when the output layer's gradient is computed, beside that of logits.
        kept = np.maximum(kept, e * (tokens(jobs) + jobs.hidden_size))
    return np.asarray(kept * jobs.vocab_size / jobs.tp)
