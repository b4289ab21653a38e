"""The fields of a training job, each declared once.

A search chooses the fields of :class:`Choices`; its trials share those of :class:`Settings`.
Annotations say the rest (``trainer.plan.annotations``). The space language, the requirements and
the cost model's columns are derived from them. Torch-free.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from foundation.records import Described
from trainer.plan.annotations import Column, Counts, Open, OtherNames, Refused, columns, value_types
from trainer.plan.formats import Format
from trainer.plan.limits import Layers, Ranks, Sequences, Steps, Width
from trainer.plan.rules.expression import Scalar
from trainer.plan.sections import (
    Documents,
    Goldfish,
    LRScheduler,
    Metrics,
    OptimizerConfig,
    Validation,
)
from trainer.plan.states import BUCKET_ELEMENTS

Recompute = Literal["none", "selective", "full"]
FP8 = ("fp8", "mxfp8")
"""8-bit formats of other trainers' products, in a model in bf16; the second is priced as the
first."""


def _known(precision: object) -> object:
    if precision in FP8:
        raise ValueError("the built-in trainer has no FP8; set bf16, or search another trainer's")
    return precision


Precision = Annotated[Literal["fp32", "bf16", "fp16"], BeforeValidator(_known)]
"""Compute format of layers."""
PipelineSchedule = Literal["1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"]
FOLDED_SCHEDULE: PipelineSchedule = "ZBVZeroBubble"
"""Schedule whose stages run over the ranks and back: the first rank also has the last stage."""
DEFERRING_SCHEDULES: tuple[PipelineSchedule, ...] = ("InterleavedZeroBubble", FOLDED_SCHEDULE)
"""Schedules that compute weight gradients apart from input gradients."""
RankOrder = Literal["tp-cp-dp-pp", "tp-pp-cp-dp"]
Preset = Literal["zero0", "zero1", "zero2", "zero3", "hpz", "mics", "zero++", "zero_topo"]

_STAGES = Counts("pp > 1", "stage_layers_need_pp", "without a pipeline: pp is {pp}")
_EQUAL_STAGES = Refused("its pipeline shares layers out equally here", "stages")
_GRID = Refused("the grid is meshtune's own", "tp")
_CHECKPOINTS = Refused("it has no checkpoints here")


class Choices(Described):
    """Fields that a search chooses for each trial; ``dp`` follows from the other degrees."""

    tp: Annotated[
        Ranks,
        OtherNames("tensor_parallel tensor_model_parallel"),
        Refused("its AutoTP splits Hugging Face models only"),
    ] = 1
    cp: Annotated[
        Ranks, OtherNames("context_parallel"), Refused("it has no context parallelism here")
    ] = 1
    """ranks of context parallelism, on one sequence"""
    ep: Annotated[
        Ranks,
        Open(),
        OtherNames("expert_parallel expert_model_parallel"),
        Counts("num_experts > 0", "ep_needs_experts", "without experts"),
        Refused("it has no experts here"),
        Column(mixtures=True),
    ] = 1
    """ranks that a layer's experts are distributed over, taken from those of tp, cp and dp"""
    gx: Annotated[Ranks, _GRID] = 1
    """grid of tensor-parallel ranks: over each layer's outputs"""
    gy: Annotated[Ranks, _GRID] = 1
    """grid of tensor-parallel ranks: over each layer's inputs"""
    gz: Annotated[Ranks, _GRID] = 1
    """grid of ranks over a replica's sequences, with weights split further"""
    pp: Annotated[Ranks, OtherNames("pipeline_parallel pipeline_model_parallel")] = 1
    vpp: Annotated[
        Layers,
        Counts("pp > 1", "vpp_needs_pp", "without a pipeline: pp is {pp}", trainers="all"),
        Refused("its pipeline does not interleave"),
    ] = 1
    """model chunks per pipeline rank"""
    pipeline_schedule: Annotated[
        PipelineSchedule,
        Counts("pp > 1", "schedule_needs_pp"),
        Refused("its pipeline runs 1F1B", "stages"),
        Column("schedule"),
    ] = "1F1B"
    """order of passes, as torch calls it; 1F1B with vpp > 1 is interleaved"""
    first_stage_layers: Annotated[
        int,
        OtherNames("decoder_first_pipeline_num_layers num_layers_in_first_pipeline_stage"),
        _STAGES,
        _EQUAL_STAGES,
        Column(),
    ] = Field(default=0, ge=0, le=100_000)
    """layers of the first pipeline rank, which has the embedding; the others share the rest
    equally. 0: its share"""
    last_stage_layers: Annotated[
        int,
        OtherNames("decoder_last_pipeline_num_layers num_layers_in_last_pipeline_stage"),
        _STAGES,
        _EQUAL_STAGES,
        Column(),
    ] = Field(default=0, ge=0, le=100_000)
    """layers of the last pipeline rank, which has the logits. 0: its share"""
    rank_order: Annotated[
        RankOrder,
        # Elsewhere both orders are the same.
        Counts("pp > 1 and world_size > tp * gx * gy * gz * pp", "rank_order_needs_pp_and_dp"),
        Refused("its pipeline's stages stand outside its replicas", "stages"),
        Column("pp_inside"),
    ] = "tp-cp-dp-pp"
    """axes on ranks, innermost first; tp-pp-cp-dp keeps stages within a node and spreads replicas
    over nodes"""
    mbs: Annotated[
        Sequences, OtherNames("micro_batch microbatch train_micro_batch_size_per_gpu")
    ] = 1
    """sequences per micro-batch and replica"""
    gas: Annotated[
        Sequences,
        OtherNames("gradient_accumulation gradient_accumulation_steps grad_acc grad_acc_steps"),
    ] = 1
    """micro-batches per step and replica"""
    zero_stage: Annotated[Literal[0, 1, 2, 3], Column()] = 0
    placement: Annotated[Preset | None, Open()] = None
    """a named placement, in place of zero_stage"""
    weight_shard: Annotated[Ranks | None, Column(other=None)] = None
    """data-parallel ranks that weights are split over"""
    secondary_shard: Annotated[int | None, Column()] = Field(default=None, ge=0, le=2**30)
    """ranks that a nearer copy of the weights is split over (hpZ); 0: no copy"""
    gradient_shard: Annotated[Ranks | None, Column(other=None)] = None
    """data-parallel ranks that gradients are split over"""
    optimizer_shard: Annotated[Ranks | None, Column(other=None)] = None
    """data-parallel ranks that optimizer states are split over"""
    quantize_weights: Annotated[
        bool | None, Column("gather_bits", {True: Format.INT8.bits_with_scales})
    ] = None
    """gather weights as INT8 (qwZ); default as the placement says"""
    quantize_gradients: Annotated[
        bool | None, Column("reduce_bits", {True: Format.INT4.bits_with_scales})
    ] = None
    """reduce gradients as INT4 (qgZ)"""
    quantize_secondary: Annotated[
        bool | None, Column("secondary_bits", {True: Format.INT8.bits_with_scales})
    ] = None
    """keep the secondary copy as INT8"""
    refresh_secondary: Annotated[Literal["step", "micro_batch"], Open(), Column("renews_copy")] = (
        "step"
    )
    """when the secondary copy is renewed: once the weights changed, or in every forward pass, as in
    the paper on ZeRO++"""
    reduce_precision: Annotated[Literal["fp32", "bf16"], Open()] = "fp32"
    """format of gradients on their way, where they are not quantized"""
    reduce_gradients: Annotated[
        Literal["micro_batch", "step"],
        Counts("gradient_shard > 1 and gas > 1", "reduce_gradients_needs_split"),
        Refused("it reduces split gradients behind each micro-batch", "reduce"),
        Column("reduces_once"),
    ] = "micro_batch"
    """when sharded gradients (ZeRO 2 and 3) are reduced: after each micro-batch, or once a step,
    from whole gradients in memory"""
    sequence_parallel: Annotated[
        bool,
        Counts("tp > 1", "sequence_parallel_needs_tp", trainers="all"),
        Refused("it has no tensor parallelism here", "tp"),
        Column(),
    ] = False
    async_tp: Annotated[
        bool,
        OtherNames("async_tensor_parallel enable_async_tensor_parallel"),
        Counts("tp > 1 and sequence_parallel", "async_tp_by_sequence", "without sequence_parallel"),
        Refused("its layers are not split"),
        Column(),
    ] = False
    """fuse each product with the exchange before or after it, unless another product hides that
    exchange; on a CPU they run one after the other"""
    overlap_all_reduce: bool = True
    """grid: all-reduce an input's gradient while the weight's is computed"""
    overlap_reduce_scatter: bool = True
    """grid: reduce-scatter weight gradients while the backward pass goes on"""
    overlap_all_gather: bool = True
    """grid: gather the next layer's weights ahead"""
    tune_kernels: Annotated[bool, Refused("its layers' products are torch's own", "tune")] = False
    """time each matrix product with its operands stored by rows and by columns, after the first
    step, and continue with the fastest"""
    recompute: Annotated[
        Recompute,
        Open(),
        Refused("it recomputes whole layers", "", ("selective",), "set recompute: full, or none"),
        Column(),
    ] = "none"
    """what the backward pass recomputes: selective, all but matrix products and attention; full,
    each layer from its input"""
    recompute_every: Annotated[Layers, Refused("it recomputes every layer")] = 1
    """one layer in so many recomputes; the others keep everything"""
    offload_activations: Annotated[
        bool,
        OtherNames("activation_offloading enable_activation_offloading cpu_checkpointing"),
        Refused("its activations stay on the device"),
        Column(),
    ] = False
    """activations wait in host memory for their backward pass, except those of a few layers"""
    chunked_loss: Annotated[bool, Refused("its loss is of whole logits"), Column()] = False
    """compute the output layer with the loss, for a part of the vocabulary at a time: the logits
    are never whole, and are computed twice"""
    compile: Annotated[
        bool, Refused("its layers run as they are"), Column("compiled", memory_only=True)
    ] = False
    """compile each layer with torch.compile, which takes minutes, once"""
    precision: Annotated[
        Precision,
        Open(),
        Column("fp8", dict.fromkeys(FP8, 1.0)),
        Column("element_bytes", {"fp32": 4.0}, other=2.0),
    ] = "bf16"
    engine: Annotated[Literal["meshtune", "deepspeed"], Open()] = "meshtune"


class OtherChoices(Described):
    """Choices that only other trainers have, in the words that the cost model can price."""

    etp: Annotated[Ranks | None, Open(), Column(other=None, mixtures=True)] = None
    """ranks that split each expert's matrices; default tp"""
    moe_token_dispatcher: Annotated[
        Literal["alltoall", "flex"] | None, Open(), Column("dispatcher", other=-1, mixtures=True)
    ] = None
    """how tokens are sent to experts: alltoall, once to each; flex, once to each node, and from
    there once to each rank; default the framework's habit"""
    moe_comm_overlap: Annotated[bool, Open(), Column("overlaps_dispatch", mixtures=True)] = False
    """send tokens to experts while the layers of another micro-batch compute"""
    cuda_graphs: Annotated[Literal["none", "layers", "step"], Open(), Column("graphs")] = "none"
    """kernels that the host launches at once: those of a layer without its experts, or of the whole
    step"""
    recompute_modules: Annotated[str, Column(other="none")] = "none"
    """modules that recompute: selective repeats, separated by commas: core_attn, layernorm,
    mla_up_proj, mlp, moe, moe_act, shared_experts (Megatron Core); none: the framework's habit"""
    account_for_embedding: Annotated[
        bool | None, OtherNames("account_for_embedding_in_pipeline_split"), Column(other=-1)
    ] = None
    """the embedding counts as a layer where a pipeline's layers are shared out; default the
    framework's habit"""
    account_for_loss: Annotated[
        bool | None, OtherNames("account_for_loss_in_pipeline_split"), Column(other=-1)
    ] = None
    """the output layer with the loss counts as a layer likewise; default the framework's habit"""
    pipeline_layout: Annotated[
        str, OtherNames("pipeline_model_parallel_layout"), Column(other="none")
    ] = "none"
    """layers of all stages, as a text; none: no layout"""
    tuning: Annotated[
        Literal["full", "lora", "qlora"], OtherNames("finetuning_type tuner_type"), Column()
    ] = "full"
    """what is trained: every weight; adapters beside frozen weights; or beside ones in NF4"""
    lora_rank: Annotated[Width, OtherNames("lora_r"), Column(other=8)] = 8
    """inner size of an adapter"""
    lora_targets: Annotated[Literal["linear", "attention", "qv"], Open(), Column()] = "linear"
    """matrices that have adapters: all of a layer, those of attention, or queries and values"""
    lora_dropout: Annotated[float, Column()] = Field(default=0.0, ge=0, lt=1)
    """share of an adapter's inputs that is dropped; above 0 each keeps a copy and a mask"""
    partition_activations: Annotated[bool, OtherNames("distribute_saved_activations"), Column()] = (
        False
    )
    """inputs of recomputed layers are split over tp, and gathered before they are used again"""
    offload_optimizer: Annotated[bool, OtherNames("optimizer_cpu_offload"), Column()] = False
    """optimizer states, and gradients where they are split, are in the host's memory, and the host
    updates the weights (ZeRO-Offload)"""
    offload_parameters: Annotated[
        bool, OtherNames("fsdp_offload_params fsdp_cpu_offload enable_cpu_offload"), Column()
    ] = False
    """weights are there, too, between the passes of their layers (ZeRO-Infinity, FSDP's CPU
    offloading)"""
    reference_model: Annotated[bool, Column()] = False
    """a frozen copy of the model is in memory, too, as in DPO without adapters"""


class Settings(Described):
    """Settings that all trials of a search share: the ``builtin`` trainer's section of a space."""

    data: str
    """prefix of an indexed token file: PREFIX.bin and PREFIX.idx"""
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_scheduler: LRScheduler = LRScheduler()
    """the learning rate over the steps; default constant"""
    documents: Annotated[Documents | None, Refused("it has no document boundaries here")] = None
    """heed the boundaries of documents within samples; default one stream"""
    loss_mask: Annotated[str | None, Refused("it has no masked loss here")] = Field(
        default=None, min_length=1
    )
    """prefix of an indexed file as long as data: 0 for tokens that are not in the loss"""
    goldfish: Annotated[Goldfish | None, Refused("it has no goldfish loss here")] = None
    """leave tokens out of the loss, against memorizing them; default none"""
    validation: Annotated[Validation | None, Refused("it has no validation here")] = None
    """loss on held-out data, between steps; default none"""
    metrics: Metrics | None = None
    """metrics of single steps in a file of the trial's folder; default none"""
    moe_aux_loss_coeff: float = Field(default=0.0, ge=0, le=1e6)
    """weight of the loss that spreads each sequence's tokens over experts; in gradients only"""
    moe_router_bias_update_rate: float = Field(default=0.0, ge=0, le=1e6)
    """change per step of a bias on the choice of experts, towards those with fewer tokens"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_memory_bytes: int | None = Field(default=None, ge=1, le=2**60)
    """limit per rank on what torch's allocator reserves of the device, on a CPU on private memory;
    default the device's own"""
    ddp_bucket_size: Annotated[int, Column("bucket_elements")] = Field(
        default=BUCKET_ELEMENTS, ge=1, le=2**40
    )
    """parameters whose gradients are reduced at once, with ZeRO 0 to 2; a larger one is a bucket of
    its own"""
    collective_timeout_s: float = Field(default=600.0, gt=0, le=366 * 86400.0)
    time_communication: Annotated[bool, Refused("its collectives are its own")] = False
    """wait for every collective and report its time, which slows training; on CPU gathering and
    reducing run side by side, and their times overlap"""
    save: Annotated[str | None, _CHECKPOINTS] = None
    """folder for checkpoints"""
    keep_latest_k: int = Field(default=2, ge=1, le=1_000_000)
    """complete checkpoints that are kept there, the newest ones"""
    save_interval: Steps | None = None
    """steps between checkpoints; default only at the end"""
    async_save: bool = False
    """write checkpoints from a copy on the host while training goes on"""
    load: Annotated[str | None, _CHECKPOINTS] = None
    """folder with checkpoints: go on from the latest complete one, in any layout, for warmup_steps
    + measured_steps more"""
    initial_load_path: Annotated[str | None, _CHECKPOINTS] = None
    """folder of Hugging Face weights (safetensors) to begin from, where load has no
    checkpoint yet"""
    last_save_in_hf: bool = False
    """at the end also write Hugging Face weights, to the folder hf inside save"""

    @model_validator(mode="after")
    def _saves_somewhere(self) -> Self:
        for name in ("save_interval", "async_save", "last_save_in_hf"):
            value = getattr(self, name)
            if value and self.save is None:
                said = name if value is True else f"{name} {value}"
                raise ValueError(f"{said} needs a folder: set save")
        return self

    @property
    def splits_samples(self) -> bool:
        """Whether attention or positions depend on the boundaries of documents."""
        return self.documents is not None and self.documents.splits_samples

    @property
    def masks_loss(self) -> bool:
        """Whether some tokens may be left out of the loss."""
        at_ends = self.documents is not None and self.documents.eod_mask_loss
        return self.goldfish is not None or self.loss_mask is not None or at_ends


def further_columns(known: Collection[str]) -> dict[str, tuple[Scalar | None, type]]:
    """Default and type of declared columns that are not ``known``."""
    types = {"boolean": bool, "text": str, "number": float}
    found = {}
    for record in (Choices, OtherChoices):
        kinds = value_types(record)
        for key, (name, column) in columns(record).items():
            if key not in known:
                coded = column.codes is not None
                found[key] = (column.other, float if coded else types[kinds[name]])
    return found
