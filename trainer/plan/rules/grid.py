"""What a grid of ranks requires (Singh et al. 2024): sizes it divides, and nothing beside it."""

from __future__ import annotations

from trainer.plan.rules.requirement import Requirement

OF_GRID = (
    *(
        Requirement(
            f"grid_{name}",
            condition,
            f"not divisible: {words}",
            builtin_only=True,
        )
        for name, condition, words in (
            ("heads", "num_kv_heads % gx == 0", "num_kv_heads {num_kv_heads} by gx {gx}"),
            (
                "hidden",
                "hidden_size % (gy * gz) == 0 and hidden_size % (gx * gz) == 0",
                "hidden_size {hidden_size} by gx {gx} * gz {gz} or gy {gy} * gz {gz}",
            ),
            (
                "ffn",
                "ffn_hidden_size % (gx * gz) == 0",
                "ffn_hidden_size {ffn_hidden_size} by gx {gx} * gz {gz}",
            ),
            (
                "vocab",
                "vocab_size % (gx * gz) == 0",
                "vocab_size {vocab_size} by gx {gx} * gz {gz}",
            ),
            ("sequences", "mbs % gz == 0", "mbs {mbs} by gz {gz}, which share its sequences"),
            (
                "key_values",
                "2 * hidden_size * num_kv_heads % (num_heads * gx * gz) == 0",
                "rows of keys and values, 2 * hidden_size {hidden_size} * num_kv_heads "
                "{num_kv_heads} / num_heads {num_heads}, by gx {gx} * gz {gz}",
            ),
        )
    ),
    Requirement(
        "grid_without_tp",
        "tp == 1 or gx * gy * gz == 1",
        "tp {tp} beside the grid gx {gx}, gy {gy}, gz {gz}: gx is its tensor parallelism; set "
        "tp: 1",
        builtin_only=True,
    ),
    Requirement(
        "grid_by_placement",
        "gradient_shard == 1 or gx * gy * gz == 1",
        "gradient_shard {gradient_shard} beside the grid gx {gx}, gy {gy}, gz {gz}: gz splits "
        "weights and gradients, the replicas optimizer states; set zero_stage to 0 or 1",
        builtin_only=True,
    ),
    Requirement(
        "grid_without_compile",
        "not compile or gx * gy * gz == 1",
        "compile beside the grid gx {gx}, gy {gy}, gz {gz}: its layers are no one graph; set "
        "compile: false",
        builtin_only=True,
    ),
    Requirement(
        "grid_without_cp",
        "cp == 1 or gx * gy * gz == 1",
        "cp {cp} beside the grid gx {gx}, gy {gy}, gz {gz}: sequences are split along one axis "
        "only; set cp: 1",
        builtin_only=True,
        axes=("cp",),
    ),
)
