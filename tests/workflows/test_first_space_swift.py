"""``meshtune init`` with the ways in which ms-swift is told of DeepSpeed and of its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from foundation.values import Scalar
from search_spaces import SearchSpace, check, load_space
from workflows.cli.main import main

SCRIPT = """\
nproc_per_node=8
NPROC_PER_NODE=$nproc_per_node \\
swift sft --model meta-llama/Llama-3.1-8B --dataset a --tuner_type lora --max_length 65536 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 32 / $nproc_per_node) \\
    --sequence_parallel_size 2 --deepspeed {deepspeed}
"""
JSON = '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'


def _products(space: SearchSpace) -> Iterator[list[tuple[str, Scalar]]]:
    names = [*space.parameters]
    for values in product(*(space.parameters[name].values for name in names)):
        yield [*zip(names, values, strict=True)]


@pytest.mark.parametrize(
    ("deepspeed", "own", "stages", "words"),
    [
        ("zero3", {}, {2, 3}, "--deepspeed zero3"),
        ("zero0", {}, {0, 2, 3}, "--deepspeed zero3"),
        ("zero2_offload", {"offload_optimizer": True}, {2}, "--deepspeed zero2_offload"),
        (
            "zero3_offload",
            {"offload_optimizer": True, "offload_parameters": True},
            {3},
            "--deepspeed zero3_offload",
        ),
        ("ds.json", {"offload_optimizer": True}, {2, 3}, "--deepspeed ds_config.json"),
    ],
)
def test_the_trainers_own_files_of_deepspeed_and_yours_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deepspeed: str,
    own: dict[str, bool],
    stages: set[int],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(JSON)
    (tmp_path / "run.sh").write_text(SCRIPT.format(deepspeed=deepspeed))
    told = ["--adapter", "ms-swift", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--args", "run.sh"]) == 0
    assert "left out" not in capsys.readouterr().out
    space = load_space(tmp_path / "space.yaml")
    offloads = {n: space.parameters[n].values for n in space.parameters if "offload" in n}
    assert offloads == {name: (value,) for name, value in own.items()}
    assert space.parameters["cp"].values == (2,)
    assert "global_batch_size == 16" in [each.text for each in space.constraints]
    valid = [c for c in map(dict, _products(space)) if space.first_violation(c) is None]
    assert {config["zero_stage"] for config in valid} == stages
    assert len(valid) == check(space).valid
    command = space.command(max(valid, key=lambda config: int(config["zero_stage"])), "/t")
    assert [*map(str, command)].count("--sequence_parallel_size") == 1
    last = len(command) - 1 - command[::-1].index("--deepspeed")
    assert f"--deepspeed {command[last + 1]}" == words
