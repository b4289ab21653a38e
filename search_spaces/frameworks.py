"""Habits of a framework: what it keeps in memory, and how it communicates and splits layers.

A record states how programs that train the same model with the same degrees differ. It never names
a machine or a model. The records are in ``known_trainers/*.yaml``; the defaults here are the habits
of most frameworks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_serializer

from foundation.records import Described
from trainer.plan.stages import Split


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in(unit: str) -> Any:
    return Field(json_schema_extra={"unit": unit}, ge=0)


PerParameter = Annotated[float, _in("bytes per parameter")]
PerLogit = Annotated[float, _in("bytes per logit")]
PerLayer = Annotated[float, _in("all-reduces per layer")]
Bytes = Annotated[float, _in("bytes")]
Copies = Annotated[float, _in("copies")]
Parameters = Annotated[float, _in("parameters")]
Pair = Annotated[tuple[PerParameter, PerParameter], BeforeValidator(_listed)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
ZeroStages = Annotated[tuple[Annotated[int, Field(ge=0, le=3)], ...], BeforeValidator(_listed)]


class Choices(Described):
    """Choices that a framework offers; a default space varies nothing else."""

    zero_stages: ZeroStages = (0, 1)
    """Stages of ZeRO that its optimizer has; 1 is Megatron's distributed optimizer."""
    tensor: bool = True
    """It has tensor parallelism."""
    pipelines: bool = True
    """It has pipeline parallelism."""
    interleaved: bool = False
    """It has interleaved pipelines: several chunks per rank."""
    zero_in_pipelines: int = 3
    """Highest stage of ZeRO that works with a pipeline."""
    further: Names = ()
    """Further parallel degrees that it has: cp, ep."""


class Habits(Described):
    """Habits of one framework; docs/how-it-works/frameworks.md discusses them."""

    # Weights, gradients and optimizer states.
    gradient_bytes: PerParameter = 4
    """Size of an accumulated gradient."""
    master_bytes: PerParameter = 4
    """Size of a master weight: 2 if it only has the bits that a 16-bit weight lacks, 0 without
    master weights."""
    moment_bytes: PerParameter = 4
    """Size of each of AdamW's two moments; their mean where they differ."""
    optimizer_always_sharded: bool = False
    """Master weights and moments are sharded without ZeRO, too. Source: DeepSpeed's
    BF16_Optimizer."""
    extra_gradient_bytes: Pair = (0, 0)
    """Size of a second copy of whole gradients: without ZeRO, and with a sharded optimizer. Source:
    DeepSpeed's BF16_Optimizer."""
    step_gradient_bytes: Pair = (0, 0)
    """Size of the copies of its part of the gradients that each rank makes to apply them: with an
    unsharded optimizer, and with a sharded one."""
    loose_gradients: bool = False
    """Gradients of a micro-batch lie beside the accumulated ones until its backward pass ends."""
    placeholder_gradients: bool = False
    """The matrix product itself adds a weight's gradient to the accumulated one, and autograd gets
    an empty matrix of the same shape. One such matrix stays for each shape in a layer; the output
    layer's is freed. Source: Transformer Engine from 2.3 on."""
    sharded_masters: bool = False
    """Weights that are sharded like their master weights exist in float32 only, and are cast when
    gathered."""
    freed_weight_bytes: PerParameter = 0
    """Memory that the allocator keeps after the weights were copied into one flat buffer."""
    fp8_copy_bytes: PerParameter = 0
    """8-bit copies of a weight kept beside it from step to step if layers compute in FP8: 2, one
    per direction; 0 if these two are the weight, or it is cast in each pass."""
    tensor_splits_states: bool = True
    """Tensor parallelism splits the sharded states, too: a rank has those of its part of the
    layers; false: of whole layers, sharded over replicas alone, as a peak and six failures of
    transformers' FSDP show."""
    live_parameters: Parameters = 1e18
    """Sharded weights that may be gathered at once, unless one matrix has more; if this does not
    bound them, those of two layers."""
    reduced_apart: Parameters = 0
    """Gradients that a separate stream copies and reduces at once if weights are sharded (at least
    one matrix's), in memory that other streams cannot use; 0: a layer's, in memory that they can.
    Source: DeepSpeed's reduce_and_partition_stream."""
    whole_in_pipelines: bool = False
    """In a pipeline, sharded weights and gradients stay whole from the first micro-batch to the
    last. Source: FSDP2 neither reshards nor reduces between micro-batches."""

    # Buffers.
    flat_buckets: bool = False
    """Whole weights lie in flat buckets, whose gradients are sharded like optimizer states and
    reduced bucket by bucket; float32 weights in them are their own master weights."""
    bucket_bytes: PerParameter = 0
    """Memory of gradient buckets kept from step to step if replicas are not sharded. Source:
    torch's DDP."""
    fixed_buffer_bytes: Bytes = 0
    """Communication buckets whose size does not depend on the model."""
    flat_reduction: bool = False
    """A sharded optimizer reduces gradients through one flat copy of them."""

    # Activations.
    flash_attention: bool = True
    """Attention scores are never written to memory."""
    sequence_parallel: bool = False
    """Sequence parallelism is always on with tensor parallelism."""
    masked_dropout: bool = False
    """Dropout masks are kept, 1 byte per element; models with gated units train without dropout.
    Source: Korthikanti et al. 2022."""
    fused_layers: bool = False
    """One kernel computes gate and product of a gated unit and keeps its inputs; one computes the
    rotation and keeps its outputs."""
    keeps_products: Literal["", "second", "all"] = ""
    """Under selective recomputation a layer keeps only its input, attention's output and the
    outputs of matrix products: of every second one (torchtitan's 'selective op'), or of all but the
    last, which nothing reads; empty: it keeps everything outside attention."""
    stashed_layers: Annotated[float, _in("layers")] = 5
    """Offloaded activations that are on the device at once, on their way to the host or back.
    Source: torchtune's max_fwd_stash_size."""
    keeps_outputs: bool = False
    """The output of a stage stays in memory until its gradient arrives."""
    logits_bytes: PerLogit = 8
    """Float32 copies of a logit at the loss, in whatever format layers compute."""
    logit_copies: Copies = 0
    """Copies of a logit in the format in which layers compute."""
    autocast_layers: bool = False
    """Layers compute one operation at a time on float32 activations under autocast: norms keep
    float32 numbers, and each product of a gated model its own 16-bit copy of its input. Source:
    transformers' Llama under torch.autocast."""
    adapter_bytes: Pair = (16, 16)
    """Weights, gradients and AdamW's moments of adapters, beside 16-bit weights and beside
    quantized ones: 16 in float32, 8 in 16 bits. Source: PEFT makes float32 adapters."""
    quantized_bytes: PerParameter = 0.5159
    """A weight in NF4: 4 bits, with a scale for each 64 weights, of 8 bits if these are quantized,
    too; 0.5625 if not. Source: Dettmers et al. 2023, section 3; bitsandbytes."""
    unquantized_bytes: PerParameter = 2
    """A weight of the vocabulary's tables beside quantized layers."""
    separate_tables: bool = False
    """Sharded vocabulary tables are gathered by themselves, not with the layers. Source:
    torchtune's custom_sharded_layers."""
    compiled_layers: bool = False
    """A compiled layer recomputes elementwise results in its backward pass if they are inputs of
    its adapters. Source: the partitioner of torch.compile."""
    expandable_segments: bool = False
    """The allocator's blocks need not be contiguous, so none is too small. Source: torch's
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""
    step_graph_bytes: Bytes = 0
    """Memory that CUDA graphs of a whole step hold beyond what the step needs without them."""

    # Communication.
    reduce_bytes: PerParameter = 2
    """Size of a gradient when it is reduced, if layers compute in 16 bits."""
    overlaps_gradients: bool = True
    """Gradient reduction may hide behind the backward pass."""
    overlaps_split_gradients: bool = True
    """The reduction of gradients may also hide if their optimizer states are sharded."""
    overlaps_publish: bool = False
    """If weights and gradients are whole or in flat buckets, updated weights arrive during the
    next forward pass."""
    owners_send: bool = True
    """If only optimizer states are sharded, each rank sends its part of the updated weights by
    itself; false: one flat buffer is gathered."""
    overlaps_tensor: bool = False
    """Collectives of tensor parallelism hide behind the products that need them. Source:
    Transformer Engine's user buffers."""
    gradients_synced_per_micro_batch: bool = False
    """Without ZeRO, a pipeline reduces gradients after every micro-batch, not every step."""
    repeated_sums: PerLayer = 2
    """All-reduces of tensor parallelism that full recomputation repeats in a layer: 2, or 1 without
    the last, whose result no gradient needs."""
    one_adapter: bool = False
    """Sharded weights and gradients, which are gathered and reduced layer by layer, cross nodes at
    the rate of one network adapter, however many there are. Source: Narayanan et al. 2021, Table 2:
    ZeRO-3 takes as long with eight adapters."""
    sends_tokens_once: bool = False
    """A token is sent once to a rank that has several of its experts. Source: DeepEP."""

    # Pipeline stages.
    split: Split = "even"
    """Layers per stage: equal, or the job is refused (even); the first stages have one more
    (first_more); each has as many as the fullest needs until none are left (last_fewer); by
    weights, output layer included (by_weight)."""
    counts_ends: bool = False
    """Embedding and output layer count as a layer each, unless the job sets it otherwise."""
    stage_settings: Names = ()
    """Parameters of a space that change the split: first_stage_layers, last_stage_layers,
    account_for_embedding, account_for_loss, pipeline_layout."""
    fills_pipeline: bool = False
    """Refuses fewer than pp - 1 micro-batches, and stages without a block."""

    # Measurement.
    own_kernels: bool = False
    """The shares of a GPU's peak that products and attention reach are the framework's own."""
    reports: Literal["allocated", "reserved", "device"] = "allocated"
    """Peak memory that it prints: of tensors (allocated), with the allocator's free blocks
    (reserved), or all memory in use on the device (device)."""
    reports_first_stage: bool = False
    """The printed peak is the first rank's, not the fullest one's."""


class RecordedHabits(Habits):
    """Habits of one framework as its record states them."""

    source: str = ""
    """Source of these habits."""
    choices: Choices = Choices()
    """Choices that it has."""
    fitted_as: str = ""
    """Framework whose fitted constants it uses, as it has none of its own."""
    reshards: str = ""
    """How to save its checkpoints so that they resume under another layout; empty: unknown whether
    they can."""
    fine_tunes: bool = False
    """It is made for fine-tuning: a program without a record is not assumed to be like it."""


FrameworkName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")]


class StatedHabits(Habits):
    """A framework with habits that are known for certain, from the user or from a launch line;
    omitted habits are those of the base's record."""

    base: FrameworkName
    """The framework whose record has the habits that are not stated here."""

    @property
    def stated(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in Habits.model_fields if n in self.model_fields_set}

    @model_serializer
    def _given(self) -> dict[str, Any]:
        """The stated habits, even those that equal the framework's defaults."""
        plain = {n: [*v] if isinstance(v, tuple) else v for n, v in self.stated.items()}
        return {"base": self.base, **plain}


class Framework(RecordedHabits):
    """A framework by its name, with its habits."""

    name: str
    stated: frozenset[str] = frozenset()
    """Names of habits that are certain; its record assumes the others."""

    @staticmethod
    def habits(named: Collection[str]) -> set[str]:
        """The names among these that are habits."""
        return Habits.model_fields.keys() & set(named)

    @staticmethod
    def is_habit(name: str, value: Any) -> bool:
        try:
            return bool(Habits.model_validate({name: value}))
        except ValidationError:
            return False

    def with_habits(self, **habits: Any) -> Framework:
        """The same framework with some habits replaced.

        Raises ValidationError for an unknown habit, or a value that it cannot have.
        """
        return Framework(**{**dict(self), **habits})
