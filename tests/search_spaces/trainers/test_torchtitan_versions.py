"""torchtitan's options of each version: a TOML file, main before 20 August 2026, and main since."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from math import ceil
from typing import Any

import pytest

from search_spaces import SearchSpace, SpaceError
from search_spaces.trainers import options

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {{adapter: torchtitan, args: {args}}}
parameters: {{num_nodes: 2, mbs: [1, 2], {more}}}
objective: {{maximize: tokens_per_second}}
"""
MAIN = ["--module", "llama3", "--config", "llama3_8b"]
BEFORE = [*MAIN, "--training.local_batch_size", "1"]
PLAIN = {"num_nodes": 2, "mbs": 2, "gas": 4, "pp": 2}
BATCH = ("batch", "tokens", "microbatch", "seq_len", "context_length")


def of(load: Load, args: Sequence[str], more: str = "gas: 4, pp: [1, 2]") -> SearchSpace:
    return load(SPACE.format(args=json.dumps([*args]), more=more))


def told(space: SearchSpace, config: dict[str, Any]) -> dict[str, Any]:
    """Options of a trial, each of them once."""
    assert space.first_violation(config) is None
    words = [word for word in space.command(config, "/t") if word.startswith("--")]
    assert len(words) == len(set(words))
    return options.read(space.command(config, "/t"), "--key value")


@pytest.mark.parametrize(
    ("args", "batch"),
    [
        (  # pytorch/torchtitan b5bcd76, config/configs.py: TrainingConfig, ParallelismConfig
            MAIN,
            {
                "training.max_context_length": 8192,
                "training.num_tokens_per_microbatch_per_dp_rank": 2 * 8192,
                "training.num_tokens_per_train_step": 64 * 8192,
                "parallelism.num_pp_microbatches": 4,
            },
        ),
        *(
            (
                args,
                {
                    "training.seq_len": 8192,
                    "training.local_batch_size": 8,
                    "training.global_batch_size": 64,
                    "parallelism.pipeline_parallel_microbatch_size": 2,
                },
            )
            for args in (BEFORE, ["--model.name", "llama3", "--model.flavor", "8B"], [])
        ),
    ],
)
def test_a_batch_is_told_in_the_words_of_the_users_version(
    load: Load, args: list[str], batch: dict[str, int]
) -> None:
    found = told(of(load, args), PLAIN)
    assert {k: v for k, v in found.items() if any(word in k for word in BATCH)} == batch
    assert ("training.disable_cuda_graphs" in found) is (args == MAIN)  # refused in a pipeline


def test_a_batch_and_a_length_in_tokens_are_read(load: Load) -> None:
    tokens = "--training.num_tokens_per_train_step 524288 --training.max_context_length 4096"
    without = SPACE.replace("model: llama_8b\n", "")
    text = without.format(args=json.dumps([*MAIN, *tokens.split()]), more="pp: [1, 2]")
    space = load(text)
    assert space.model is not None  # by the name of its configuration
    assert (space.model.num_layers, space.model.seq_length) == (32, 4096)
    assert "global_batch_size == 128" in [each.text for each in space.constraints]
    found = told(space, {**PLAIN, "gas": 8})
    assert found["training.num_tokens_per_train_step"] == 524288
    assert found["training.max_context_length"] == 4096


def test_tokens_of_a_step_that_are_no_whole_sequences_are_refused(load: Load) -> None:
    args = [*MAIN, "--training.num_tokens_per_train_step", "1000000"]
    refusal = "_step 1000000, accepted multiples of seq_length 8192, such as 999424"
    with pytest.raises(SpaceError, match=rf"trainer\.args': found .*{refusal}"):
        of(load, args)
    space = of(load, args, "global_batch_size: 128")  # the space's own replaces them
    assert (
        told(space, {"num_nodes": 2, "mbs": 2, "gas": 4})["training.num_tokens_per_train_step"]
        == 128 * 8192
    )


def test_what_saves_or_validates_is_off(load: Load) -> None:
    """The configurations of main turn some of it on."""
    found = told(of(load, [*MAIN, "--checkpoint.enable"]), PLAIN)
    assert "checkpoint.enable" not in found
    off = ("checkpoint.no-enable", "validator.no-enable", "metrics.no-enable_tensorboard")
    assert all(found[name] is True for name in off)
    assert found["dump_folder"] == "/t/output"


@pytest.mark.parametrize("ends", ["", ", account_for_embedding: [false], account_for_loss: [true]"])
def test_stages_are_as_many_as_torchtitan_counts(load: Load, ends: str) -> None:
    """Of distributed/pipeline_parallel.py, the same in v0.2.2: with both ends as a layer each."""
    more = "pp: [1, 2, 4, 8], vpp: [1, 2, 3, 4, 8], gas: 16"
    space = of(load, MAIN, more + ends)
    fixed = {"account_for_embedding": False, "account_for_loss": True} if ends else {}
    taken = set()
    for pp, vpp in product([2, 4, 8], [1, 2, 3, 4, 8]):
        config = {"num_nodes": 2, "mbs": 1, "gas": 16, "pp": pp, "vpp": vpp, **fixed}
        if space.first_violation(config) is not None:
            continue
        found = told(space, config)
        taken.add(vpp)
        looped = found["parallelism.pipeline_parallel_schedule"] == "Interleaved1F1B"
        layers = found.get("parallelism.pipeline_parallel_layers_per_stage")
        per_rank = 2 if looped else 1
        if layers is not None:
            first, last = (
                found.get(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1)
                for end in ("first", "last")
            )
            stages = ceil((32 + first + last) / layers)
            assert stages % pp == 0
            per_rank = stages // pp
        assert per_rank == vpp
    assert {1, 2} < taken


def test_ranks_that_torchtitan_refuses_are_not_proposed(load: Load) -> None:
    """A sequence is cut twice for each rank of cp and once for each of tp: trainer.py.

    DDP goes with no other axis in models/llama3/infra/parallelize.py of v0.2.2.
    """
    text = SPACE.replace("llama_8b", "{{base: llama_8b, seq_length: 2064}}")
    space = load(text.format(args=json.dumps(MAIN), more="gas: 4, tp: [1, 4], cp: [1, 2, 4]"))
    config = {"num_nodes": 2, "mbs": 1, "gas": 4, "tp": 4, "cp": 4}
    assert "seq_length % (2 * cp * tp)" in str(space.first_violation(config))
    assert space.first_violation({**config, "cp": 2}) is None
    space = of(load, [], "gas: 4, tp: [1, 2, 16], pp: [1, 2], zero_stage: [0, 3]")
    for tp, pp, zero_stage, fits in ((1, 1, 0, 1), (2, 1, 0, 0), (1, 2, 0, 0), (2, 2, 3, 1)):
        config = {"num_nodes": 2, "mbs": 1, "gas": 4, "tp": tp, "pp": pp, "zero_stage": zero_stage}
        assert (space.first_violation(config) is None) == fits
