"""Frameworks' habits, as facts of a record: what each keeps in memory and how it communicates.

A profile is what differs between two programs that train the same model with the same degrees. It
never names a machine or a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from trainer.plan.stages import COUNTED, GIVEN, STAGE_SETTINGS, Split


@dataclass(frozen=True)
class Framework:
    """One framework's habits; see docs/how-it-works/frameworks.md for where each is from.

    Attributes:
        name: as tables and spaces call it.
        gradient_bytes: of an accumulated gradient.
        master_bytes: of master weights and AdamW's moments together, 12 where weights are 16-bit.
        extra_gradient_bytes: of a second, never sharded copy of the gradients (DeepSpeed's
            BF16_Optimizer keeps float32 ones).
        reduce_bytes: of a gradient element on its way.
        flash_attention: scores are never written to memory.
        sequence_parallel: always on with tensor parallelism.
        gradients_synced_per_micro_batch: without ZeRO, a pipeline reduces gradients after every
            micro-batch and not once a step.
        split: how a pipeline's layers are split over its stages: equally, or the job is refused
            (``even``); the first ones have one more (``first_more``); each has as many as the
            fullest needs, until none are left (``last_fewer``); by weights, output layer included
            (``by_weight``).
        counts_ends: embedding and output layer count as a layer each, unless the job says else.
        stage_settings: parameters of a space by which it can be told to split otherwise; see
            :class:`search_spaces.StageSettings`.
        keeps_products: of a layer under selective recomputation, only its input, what attention
            gives and the outputs of products stay: of every ``second`` one (torchtitan's
            ``selective op``), or of ``all`` but the last, which nothing reads; else all but what
            attention has inside.
        whole_in_pipelines: split weights and gradients stay whole from the first micro-batch to
            the last where there is a pipeline (FSDP2 neither reshards nor reduces between them).
        masked_dropout: keeps dropout masks, 1 byte an element (Korthikanti et al. 2022); models
            with gated units are trained without dropout.
        fused_layers: a gated unit's gate and product are one kernel, and so is rotation: what the
            former begins with is kept, and what the latter ends with.
        placeholder_gradients: a weight's gradient is added to the accumulated one by the product
            itself, and a matrix of its shape stands for it in autograd: one stays for each shape
            of a layer's matrices (Transformer Engine from 2.3 on), the output layer's comes and
            goes.
        logits_bytes: per logit at the loss, of all copies that are in float32 whatever layers
            compute in.
        logit_copies: of a logit, in the format in which layers compute.
        repeated_sums: of tensor parallelism that full recomputation repeats in a layer: both, or
            all but the last, whose result no gradient needs.
        overlaps_split_gradients: and so may that of gradients whose optimizer states are split.
        overlaps_gradients: gradient reduction may hide behind the backward pass.
        flat_buckets: whole weights lie in flat buckets, where gradients are split as optimizer
            states are as well; there they are reduced bucket by bucket, and float32 weights are
            their own master weights.
        overlaps_publish: where weights and gradients are whole, or in flat buckets, updated weights
            arrive during the next forward pass.
        live_parameters: split weights that may be whole at once, unless one matrix has more; those
            of two layers where there is no such bound.
        sharded_masters: weights that are split as their master weights are kept in float32 only,
            and cast as they are gathered.
        one_adapter: split weights and gradients, which come and go layer by layer, cross nodes at
            the rate of one adapter, however many there are.
        bucket_bytes: of a parameter's place in the buckets in which gradients are reduced, kept
            from step to step where replicas are not split at all (torch's DDP).
        step_gradient_bytes: of copies of a gradient that each rank makes of its part to apply it,
            where the optimizer is whole and where it is split.
        fixed_buffer_bytes: of buckets whose size does not depend on the model.
        freed_weight_bytes: of a parameter, in blocks that the allocator keeps: weights are copied
            into one flat buffer on the device, and their own memory is free from then on.
        keeps_outputs: a stage's output stays in memory until its gradient arrives.
        flat_reduction: gradients are copied into one flat buffer to be reduced where the optimizer
            is split.
        loose_gradients: a micro-batch's gradients lie beside the accumulated ones until its
            backward pass ends.
        fp8_copy_bytes: of 8-bit copies of a weight that stay from one step to the next, where
            layers compute in FP8: one for each direction.
        sends_tokens_once: to a rank on which several of a token's experts are.
        overlaps_tensor: tensor parallelism's collectives hide behind the products that need them
            (Transformer Engine's user buffers).
        own_kernels: what products and attention reach of a GPU goes with the framework.
        fills_pipeline: refuses fewer than pp - 1 micro-batches, and stages without a block.
        reports: what the peak memory that it prints is: what tensors held (``allocated``), with
            the allocator's free blocks (``reserved``), or all that the device held (``device``).
        reports_first_stage: the figure is the first rank's, not the fullest one's.
    """

    name: str
    gradient_bytes: float = 4
    master_bytes: float = 12
    extra_gradient_bytes: float = 0
    reduce_bytes: float = 4
    flash_attention: bool = True
    sequence_parallel: bool = False
    gradients_synced_per_micro_batch: bool = False
    split: Split = "even"
    counts_ends: bool = False
    stage_settings: tuple[str, ...] = ()
    keeps_products: Literal["", "second", "all"] = ""
    whole_in_pipelines: bool = False
    masked_dropout: bool = False
    fused_layers: bool = False
    placeholder_gradients: bool = False
    logits_bytes: float = 8
    logit_copies: float = 0
    overlaps_gradients: bool = True
    repeated_sums: float = 2
    overlaps_split_gradients: bool = True
    flat_buckets: bool = False
    overlaps_publish: bool = False
    live_parameters: float = math.inf
    sharded_masters: bool = False
    one_adapter: bool = False
    bucket_bytes: float = 0
    step_gradient_bytes: tuple[float, float] = (0, 0)
    fixed_buffer_bytes: float = 0
    freed_weight_bytes: float = 0
    keeps_outputs: bool = False
    flat_reduction: bool = False
    loose_gradients: bool = False
    fp8_copy_bytes: float = 2
    sends_tokens_once: bool = False
    overlaps_tensor: bool = False
    own_kernels: bool = False
    fills_pipeline: bool = False
    reports: Literal["allocated", "reserved", "device"] = "allocated"
    reports_first_stage: bool = False


MESHTUNE = Framework(
    "meshtune",
    repeated_sums=1,
    flat_buckets=True,
    overlaps_publish=True,
    keeps_products="all",
    logits_bytes=0,
    logit_copies=2,
    sharded_masters=True,
    fp8_copy_bytes=0,
    stage_settings=GIVEN,
)
NANOTRON = Framework(
    "nanotron",
    sequence_parallel=True,
    gradients_synced_per_micro_batch=True,
    split="by_weight",
    overlaps_split_gradients=False,
    logits_bytes=12,
    bucket_bytes=2,
    flat_reduction=True,
    loose_gradients=True,
    fills_pipeline=True,
    reports="reserved",
    reports_first_stage=True,
)
MEGATRON_LM = Framework(
    "megatron-lm",
    masked_dropout=True,
    fused_layers=True,
    placeholder_gradients=True,
    stage_settings=STAGE_SETTINGS,
)
# Before flash attention: the Megatron papers' and BigScience's runs of 2021 and 2022.
MEGATRON_LM_V3 = replace(
    MEGATRON_LM,
    name="megatron-lm-v3",
    flash_attention=False,
    fused_layers=False,
    placeholder_gradients=False,
    stage_settings=(),
)
# NVIDIA's recipes: Megatron Core with Transformer Engine's kernels, from NeMo 24 on.
MEGATRON_BRIDGE = Framework(
    "megatron-bridge",
    reduce_bytes=2,
    fused_layers=True,
    placeholder_gradients=True,
    overlaps_tensor=True,
    sends_tokens_once=True,
    own_kernels=True,
    stage_settings=STAGE_SETTINGS,
)
MEGATRON_DEEPSPEED = Framework(
    "megatron-deepspeed",
    gradient_bytes=2,
    reduce_bytes=2,
    flash_attention=False,
    masked_dropout=True,
    overlaps_gradients=False,
    one_adapter=True,
    step_gradient_bytes=(4, 6),
    fixed_buffer_bytes=4 * 5e8,  # two buckets of 5e8 16-bit elements
    live_parameters=1e9,
    keeps_outputs=True,
    split="last_fewer",
    stage_settings=COUNTED,
    reports="device",
)
DEEPSPEED_BF16 = Framework(
    "deepspeed-bf16",
    gradient_bytes=2,
    extra_gradient_bytes=4,
    freed_weight_bytes=2,
    flash_attention=False,
    masked_dropout=True,
    overlaps_gradients=False,
    one_adapter=True,
    fixed_buffer_bytes=4 * 5e8,  # two buckets of 5e8 16-bit elements
    live_parameters=1e9,
    keeps_outputs=True,
    split="last_fewer",
    stage_settings=COUNTED,
    reports="device",
)
FSDP = Framework(
    "fsdp",
    reduce_bytes=2,
    logits_bytes=0,
    logit_copies=2,
    sharded_masters=True,
    reports="reserved",
)
TORCHTITAN = Framework(
    "torchtitan",
    sequence_parallel=True,
    keeps_products="second",
    whole_in_pipelines=True,
    split="first_more",
    counts_ends=True,
    stage_settings=COUNTED,
    logits_bytes=12,
    sharded_masters=True,
    reports="reserved",
)
AXONN = Framework("axonn", gradient_bytes=2, reduce_bytes=2, masked_dropout=True)

FRAMEWORKS = {
    p.name: p
    for p in (
        MESHTUNE,
        NANOTRON,
        MEGATRON_LM,
        MEGATRON_LM_V3,
        MEGATRON_BRIDGE,
        MEGATRON_DEEPSPEED,
        DEEPSPEED_BF16,
        FSDP,
        TORCHTITAN,
        AXONN,
    )
}


_FORMER = {"megatron-bridge-26.06": MEGATRON_BRIDGE.name}  # in files of before


def framework_named(name: str) -> Framework:
    """The habits of a framework by name; of an unknown one those that most have."""
    return FRAMEWORKS.get(_FORMER.get(name, name)) or Framework(name)
