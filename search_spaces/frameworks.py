"""Habits of a framework: what it keeps in memory, and how it communicates and splits layers.

A record says what differs between two programs that train the same model with the same degrees. It
never names a machine or a model. The records are in ``known_trainers/*.yaml``; defaults here are
what most frameworks do.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from foundation.records import Record
from search_spaces.stages import Split


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Pair = Annotated[tuple[float, float], BeforeValidator(_listed)]
ZeroStages = Annotated[tuple[Annotated[int, Field(ge=0, le=3)], ...], BeforeValidator(_listed)]


def _habit(default: Any, sentence: str, unit: str = "", source: str = "", **more: Any) -> Any:
    """A field with its description, its unit and the source of the formula that uses it."""
    notes: dict[str, Any] = {
        key: text for key, text in (("unit", unit), ("source", source)) if text
    }
    return Field(default=default, description=sentence, json_schema_extra=notes or None, **more)


class Choices(Record):
    """Choices that a framework has; a default space varies no more than these."""

    zero_stages: ZeroStages = _habit(
        (0, 1), "stages of ZeRO that its optimizer has; 1 is Megatron's distributed optimizer"
    )
    tensor: bool = _habit(True, "it has tensor parallelism")
    pipelines: bool = _habit(True, "it has pipeline parallelism")
    interleaved: bool = _habit(False, "it has interleaved pipelines: several chunks per rank")
    zero_in_pipelines: int = _habit(3, "highest stage of ZeRO that works with a pipeline")
    further: Names = _habit((), "further parallel degrees that it has: cp, ep")


class Habits(Record):
    """Habits of one framework; docs/how-it-works/frameworks.md discusses them."""

    source: str = _habit("", "where these habits are from")
    choices: Choices = _habit(Choices(), "choices that it has")

    # Weights, gradients and optimizer states.
    gradient_bytes: float = _habit(4, "size of an accumulated gradient", "bytes per parameter")
    master_bytes: float = _habit(
        12,
        "size of master weights and AdamW's two moments together, where weights are 16-bit",
        "bytes per parameter",
    )
    extra_gradient_bytes: float = _habit(
        0,
        "size of a second, never sharded copy of the gradients: float32 in DeepSpeed's "
        "BF16_Optimizer",
        "bytes per parameter",
    )
    step_gradient_bytes: Pair = _habit(
        (0, 0),
        "size of the copies that each rank makes of its part of the gradients to apply them: "
        "with an unsharded optimizer, and with a sharded one",
        "bytes per parameter",
    )
    loose_gradients: bool = _habit(
        False,
        "gradients of a micro-batch lie beside the accumulated ones until its backward pass ends",
    )
    placeholder_gradients: bool = _habit(
        False,
        "the matrix product adds a weight's gradient to the accumulated one itself, and autograd "
        "gets an empty matrix of the same shape: one stays for each shape in a layer, that of the "
        "output layer is freed",
        source="Transformer Engine from 2.3 on",
    )
    sharded_masters: bool = _habit(
        False,
        "weights sharded as their master weights exist in float32 only, and are cast when gathered",
    )
    freed_weight_bytes: float = _habit(
        0,
        "memory that the allocator keeps after the weights were copied into one flat buffer",
        "bytes per parameter",
    )
    fp8_copy_bytes: float = _habit(
        2,
        "8-bit copies of a weight kept from step to step where layers compute in FP8: one per "
        "direction",
        "bytes per parameter",
    )
    live_parameters: float = _habit(
        math.inf,
        "sharded weights that may be gathered at once, unless one matrix has more; without this "
        "bound those of two layers",
        "parameters",
        allow_inf_nan=True,
    )
    whole_in_pipelines: bool = _habit(
        False,
        "in a pipeline, sharded weights and gradients stay whole from the first micro-batch to the "
        "last",
        source="FSDP2 neither reshards nor reduces between micro-batches",
    )

    # Buffers.
    flat_buckets: bool = _habit(
        False,
        "whole weights lie in flat buckets, in which gradients are sharded as optimizer states are "
        "and reduced bucket by bucket; there float32 weights are their own master weights",
    )
    bucket_bytes: float = _habit(
        0,
        "place in gradient buckets kept from step to step where replicas are not sharded",
        "bytes per parameter",
        "torch's DDP",
    )
    fixed_buffer_bytes: float = _habit(
        0, "communication buckets whose size does not depend on the model", "bytes"
    )
    flat_reduction: bool = _habit(
        False, "a sharded optimizer reduces gradients through one flat copy of them"
    )

    # Activations.
    flash_attention: bool = _habit(True, "attention scores are never written to memory")
    sequence_parallel: bool = _habit(
        False, "sequence parallelism is always on with tensor parallelism"
    )
    masked_dropout: bool = _habit(
        False,
        "dropout masks are kept, 1 byte per element; models with gated units train without dropout",
        source="Korthikanti et al. 2022",
    )
    fused_layers: bool = _habit(
        False,
        "gate and product of a gated unit are one kernel that keeps its inputs, and rotation is "
        "one that keeps its outputs",
    )
    keeps_products: Literal["", "second", "all"] = _habit(
        "",
        "under selective recomputation a layer keeps only its input, attention's output and the "
        "outputs of matrix products: of every second one (torchtitan's 'selective op'), or of all "
        "but the last, which nothing reads; empty: it keeps all but what is inside attention",
    )
    keeps_outputs: bool = _habit(
        False, "the output of a stage stays in memory until its gradient arrives"
    )
    logits_bytes: float = _habit(
        8, "float32 copies of a logit at the loss, whatever layers compute in", "bytes per logit"
    )
    logit_copies: float = _habit(
        0, "copies of a logit in the format in which layers compute", "copies"
    )

    # Communication.
    reduce_bytes: float = _habit(4, "size of a gradient when it is reduced", "bytes per parameter")
    overlaps_gradients: bool = _habit(True, "gradient reduction may hide behind the backward pass")
    overlaps_split_gradients: bool = _habit(
        True, "so may the reduction of gradients whose optimizer states are sharded"
    )
    overlaps_publish: bool = _habit(
        False,
        "where weights and gradients are whole or in flat buckets, updated weights arrive during "
        "the next forward pass",
    )
    overlaps_tensor: bool = _habit(
        False,
        "collectives of tensor parallelism hide behind the products that need them",
        source="Transformer Engine's user buffers",
    )
    gradients_synced_per_micro_batch: bool = _habit(
        False, "without ZeRO, a pipeline reduces gradients after every micro-batch, not every step"
    )
    repeated_sums: float = _habit(
        2,
        "all-reduces of tensor parallelism that full recomputation repeats in a layer: 2, or 1 "
        "where the last is left out, whose result no gradient needs",
        "all-reduces per layer",
    )
    one_adapter: bool = _habit(
        False,
        "sharded weights and gradients, which come and go layer by layer, cross nodes at the rate "
        "of one network adapter, however many there are",
        source="Narayanan et al. 2021, Table 2: ZeRO-3 takes as long with eight adapters",
    )
    sends_tokens_once: bool = _habit(
        False,
        "a token is sent once to a rank that has several of its experts",
        source="DeepEP",
    )

    # Pipeline stages.
    split: Split = _habit(
        "even",
        "layers per stage: equal, or the job is refused (even); the first stages have one more "
        "(first_more); each has as many as the fullest needs until none are left (last_fewer); by "
        "weights, output layer included (by_weight)",
    )
    counts_ends: bool = _habit(
        False, "embedding and output layer count as a layer each, unless the job says otherwise"
    )
    stage_settings: Names = _habit(
        (),
        "parameters of a space that change the split: first_stage_layers, last_stage_layers, "
        "account_for_embedding, account_for_loss, pipeline_layout",
    )
    fills_pipeline: bool = _habit(
        False, "refuses fewer than pp - 1 micro-batches, and stages without a block"
    )

    # Measurement.
    own_kernels: bool = _habit(
        False,
        "the shares of a GPU's peak that products and attention reach are the framework's own",
    )
    reports: Literal["allocated", "reserved", "device"] = _habit(
        "allocated",
        "peak memory that it prints: of tensors (allocated), with the allocator's free blocks "
        "(reserved), or all that the device held (device)",
    )
    reports_first_stage: bool = _habit(
        False, "the printed peak is the first rank's, not the fullest one's"
    )


class Framework(Habits):
    """A framework by its name, with its habits."""

    name: str

    def with_habits(self, **habits: Any) -> Framework:
        """The same framework with some habits replaced.

        Raises:
            ValidationError: for an unknown habit, or a value that it cannot have.
        """
        return Framework(**{**dict(self), **habits})
