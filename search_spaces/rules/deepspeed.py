"""What DeepSpeed cannot train, in the constraint grammar.

``trainer.deepspeed.rules`` says the same of one configuration, with reasons and remedies; the
tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.language.expression import ValueType, parse
from search_spaces.language.schema import BuiltinTrainer
from search_spaces.rules.rule import Rule, expressed

RULES = {
    "deepspeed_tp": "tp == 1 and not sequence_parallel",
    "deepspeed_vpp": "vpp == 1",
    # All replicas or one, for each: ZeRO's stages.
    "deepspeed_degrees": "(weight_shard == 1 or weight_shard == dp)"
    " and (gradient_shard == 1 or gradient_shard == dp)"
    " and (optimizer_shard == 1 or optimizer_shard == dp)",
    "deepspeed_pipeline": "pp == 1 or gradient_shard == 1 and optimizer_shard == dp",
    "deepspeed_secondary": "secondary_shard != 1 and not quantize_secondary",
    "deepspeed_recompute": "recompute != 'selective'",
}
CPU_RULES = {
    "deepspeed_quantize": "dp == 1 or not quantize_weights and not quantize_gradients",
    "deepspeed_precision": "precision != 'fp16'",
}
CUDA_RULES = {
    "deepspeed_quantize": "dp == 1 or not quantize_weights and not quantize_gradients"
    " or weight_shard == dp and (num_nodes > 1 or not quantize_gradients)",
    "deepspeed_precision": "dp == 1 or precision != 'fp16' or optimizer_shard == dp",
}


def rules(trainer: BuiltinTrainer, types: Mapping[str, ValueType]) -> list[Rule]:
    """The rules for a space that searches ``engine``; a device that is not said counts as CUDA."""
    texts = RULES | (CPU_RULES if trainer.device == "cpu" else CUDA_RULES)
    if trainer.time_communication:
        texts |= {"deepspeed_time_communication": "false"}
    return [
        expressed(name, parse(f"engine != 'deepspeed' or {text}", types))
        for name, text in texts.items()
    ]
