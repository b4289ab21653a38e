"""What pipelines require: equal stages, or those that are given, and what a schedule can do."""

from __future__ import annotations

from trainer.plan.rules.requirement import Requirement

_ZERO_BUBBLE = tuple(
    Requirement(
        f"zero_bubble_{name}",
        f"pp == 1 or pipeline_schedule in ['1F1B', 'LoopedBFS'] or {condition}",
        f"pipeline_schedule {{pipeline_schedule}} beside {words}; change it, or set "
        "pipeline_schedule: 1F1B",
        builtin_only=True,
    )
    for name, condition, words in (
        (
            "gas",
            "pipeline_schedule != 'InterleavedZeroBubble' or gas % pp == 0",
            "gas {gas}, which pp {pp} does not divide",
        ),
        (
            "chunks",
            "pipeline_schedule == 'InterleavedZeroBubble' or vpp == 2",
            "vpp {vpp}: each rank has two stages, of which the second ones go back; set vpp: 2",
        ),
        (
            "filled",
            "pipeline_schedule != 'DualPipeV' or gas >= 2 * pp",
            "gas {gas}, which is below its stages, 2 * pp {pp}",
        ),
        (
            "gradients",
            "gradient_shard == 1",
            "gradient_shard {gradient_shard}: split gradients leave behind a backward pass, before "
            "those of its weights are there",
        ),
        (
            "layers",
            "recompute != 'selective' and not compile and precision != 'fp8'",
            "recompute {recompute}, compile {compile}, precision {precision}: its products are not "
            "by themselves",
        ),
        (
            "grid",
            "gx * gy * gz == 1",
            "the grid gx {gx}, gy {gy}, gz {gz}, whose order is its own",
        ),
    )
)
# Stages whose layers are not given, and what they share.
_SHARING = "(pp - (1 if first_stage_layers > 0 else 0) - (1 if last_stage_layers > 0 else 0))"
_LEFT = "(num_layers - first_stage_layers - last_stage_layers)"
PIPELINE = (
    Requirement(
        "layers_by_stages",
        "first_stage_layers + last_stage_layers > 0 or num_layers % (pp * vpp) == 0",
        "not divisible: num_layers {num_layers} by pp {pp} * vpp {vpp}; give first_stage_layers or "
        "last_stage_layers what leaves the other stages equal shares",
    ),
    Requirement(
        "stage_layers_by_vpp",
        "first_stage_layers % vpp == 0 and last_stage_layers % vpp == 0",
        "not divisible: first_stage_layers {first_stage_layers} or last_stage_layers "
        "{last_stage_layers} by vpp {vpp}, a stage's chunks; make both multiples of it, or 0",
        builtin_only=True,
    ),
    Requirement(
        "layers_by_other_stages",
        f"first_stage_layers + last_stage_layers == 0 or ({_LEFT} > 0 and {_LEFT} % ({_SHARING} * "
        f"vpp) == 0 if {_SHARING} > 0 else {_LEFT} == 0)",
        "first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers} of "
        "num_layers {num_layers}: what they leave is no equal share for each other stage of pp "
        "{pp} * vpp {vpp}; change one of them",
        builtin_only=True,
    ),
    # Interleaved 1F1B hands micro-batches out in rounds of pp; breadth-first knows no rounds.
    Requirement("interleaved_gas", "vpp == 1 or gas % pp == 0", others_only=True),
    Requirement(
        "interleaved_gas",
        "vpp == 1 or gas % pp == 0 or pipeline_schedule in ['LoopedBFS', 'ZBVZeroBubble', "
        "'DualPipeV']",
        "not divisible: gas {gas} by pp {pp} (interleaved schedule, vpp {vpp}); change gas, or set "
        "pipeline_schedule: LoopedBFS",
        builtin_only=True,
    ),
    *_ZERO_BUBBLE,
)
