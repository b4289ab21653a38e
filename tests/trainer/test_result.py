"""The result file: its figures, its truth, and that it is whole or absent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainer.plan.config import TrainConfig
from trainer.plan.flops import hardware_flops, model_flops
from trainer.result import FIGURES, clear_result, completed, failure, step_line, write_result

CONFIG = TrainConfig.parse(
    {
        "model": {
            "num_layers": 2,
            "hidden_size": 32,
            "num_heads": 4,
            "vocab_size": 257,
            "seq_length": 16,
        },
        "data": "x",
        "tp": 2,
        "mbs": 3,
        "gas": 5,
        "recompute": "full",
        "warmup_steps": 1,
        "measured_steps": 3,
    }
)


def training(**changes: Any) -> dict[str, Any]:
    return {
        "step_times_s": [9.0, 0.5, 0.25, 1.0],
        "losses": [5.0, 4.0, 3.0, 2.0],
        "grad_norms": [1.0, 1.0, 1.0, 1.0],
        "skipped_steps": 0,
        "validation_losses": {},
        "checkpoints_s": [],
        "stopped": False,
        "communication": {"bytes": {"gradients": {"node": 64}}, "calls": {}},
        "kernels": None,
        "device": {"type": "cpu"},
    } | changes


def memory(*peaks: int) -> list[dict[str, int]]:
    """Of ranks whose tensors took so much; the allocator and the device hold more."""
    return [{"allocated": peak, "reserved": 2 * peak, "used": 3 * peak} for peak in peaks]


def test_a_steps_line_has_the_rates_that_the_result_would_have_of_that_step_alone() -> None:
    word, text = step_line(CONFIG, 8, 2, 0.5, {}).split(" ", 1)
    assert word == "MESHTUNE_STEP"
    step = json.loads(text)
    assert (step.pop("step"), step.pop("step_time_s")) == (2, 0.5)
    whole = completed(CONFIG, 8, training(step_times_s=[9.0, 0.5, 0.5, 0.5]), memory(*[1] * 8))
    assert step == {key: whole[key] for key in step}
    assert {"tokens_per_second", "tflops_per_gpu", "samples_per_second"} <= step.keys()
    assert "peak_memory_bytes" not in step


def test_losses_on_held_out_data_are_told_by_their_steps() -> None:
    validated = training(validation_losses={2: 4.5, 4: 2.5})
    assert completed(CONFIG, 8, validated, memory(*[1] * 8))["validation_loss"] == {
        "2": 4.5,
        "4": 2.5,
    }
    assert "validation_loss" not in completed(CONFIG, 8, training(), memory(*[1] * 8))


def test_figures_come_from_the_median_of_the_measured_steps_alone() -> None:
    result = completed(CONFIG, 8, training(), memory(10, 30, 20, 30, 5, 5, 5, 5))
    batch = 3 * 5 * 4
    assert result["status"] == "ok"
    assert result["step_time_s"] == {"median": 0.5, "all": [0.5, 0.25, 1.0]}
    assert (result["dp"], result["world_size"], result["global_batch_size"]) == (4, 8, batch)
    assert result["samples_per_second"] == batch / 0.5
    assert result["tokens_per_second"] == batch * 16 / 0.5
    assert result["tokens_per_second_per_gpu"] == batch * 16 / 0.5 / 8
    assert result["tflops_per_gpu"] == pytest.approx(
        model_flops(CONFIG.model, batch) / 0.5 / 8 / 1e12
    )
    assert result["hardware_tflops_per_gpu"] == pytest.approx(
        hardware_flops(CONFIG.model, batch, "full") / 0.5 / 8 / 1e12
    )
    assert result["loss"] == [5.0, 4.0, 3.0, 2.0]
    assert result["parameters"] == CONFIG.model.num_parameters
    assert result["communication_bytes"] == {"gradients": {"node": 64}}


@pytest.mark.parametrize(
    ("recompute", "every", "share"), [("none", 1, 0), ("selective", 1, 0), ("full", 2, 0.5)]
)
def test_hardware_flops_count_the_layers_that_run_twice(
    recompute: str, every: int, share: float
) -> None:
    changed = {"recompute": recompute, "recompute_every": every}
    result = completed(CONFIG.model_copy(update=changed), 8, training(), memory(*[1] * 8))
    useful, whole = (
        f(CONFIG.model, 60, *k) for f, k in ((model_flops, ()), (hardware_flops, ("full",)))
    )
    executed = result["hardware_tflops_per_gpu"] / result["tflops_per_gpu"] * useful
    assert executed == pytest.approx(useful + share * (whole - useful))


def test_every_key_of_a_result_can_be_sought() -> None:
    found = completed(CONFIG, 8, training(), memory(*[1] * 8)).keys()
    found -= {"status", "versions", "device", "memory"}
    assert {key for key in found if not key.startswith("communication_")} == {*FIGURES}


def test_the_peak_names_the_first_rank_that_reached_it() -> None:
    result = completed(CONFIG, 8, training(), memory(10, 30, 20, 30, 5, 5, 5, 5))
    assert (result["peak_memory_bytes"], result["peak_memory_rank"]) == (30, 1)
    assert result["peak_reserved_bytes"] == 60
    assert result["memory"]["used"] == [30, 90, 60, 90, 15, 15, 15, 15]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_diverged_and_never_a_fast_result(bad: float) -> None:
    result = completed(CONFIG, 8, training(losses=[5.0, bad, 3.0, 2.0]), memory(*[1] * 8))
    assert (result["status"], result["where"]) == ("diverged", "step 1")
    assert "tokens_per_second" not in result


def test_a_last_step_that_spoilt_the_weights_is_diverged_unless_it_was_skipped() -> None:
    spoilt = training(grad_norms=[1.0, 1.0, 1.0, float("inf")])
    result = completed(CONFIG, 8, spoilt, memory(*[1] * 8))
    assert (result["status"], result["where"]) == ("diverged", "step 3")
    skipped = completed(CONFIG, 8, spoilt | {"skipped_steps": 1}, memory(*[1] * 8))
    assert skipped["status"] == "ok"


def test_a_run_whose_every_step_was_skipped_is_diverged() -> None:
    assert completed(CONFIG, 8, training(skipped_steps=4), memory(*[1] * 8))["status"] == "diverged"
    assert completed(CONFIG, 8, training(skipped_steps=3), memory(*[1] * 8))["status"] == "ok"


def test_nan_and_infinity_are_written_as_null(tmp_path: Path) -> None:
    losses = [5.0, float("nan"), float("inf"), float("-inf")]
    write_result(tmp_path, completed(CONFIG, 8, training(losses=losses), memory(*[1] * 8)))

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    written = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert written["loss"] == [5.0, None, None, None]


def test_the_first_writer_wins(tmp_path: Path) -> None:
    assert write_result(tmp_path, failure("oom", "build", "no memory", rank=2))
    assert not write_result(tmp_path, failure("error", "forward", "connection closed", rank=0))
    written = json.loads((tmp_path / "result.json").read_text())
    assert (written["status"], written["rank"]) == ("oom", 2)


def test_of_many_writers_at_once_exactly_one_wins_and_nothing_else_is_left(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = [failure("oom", "build", "x" * 10_000, rank=rank) for rank in range(16)]
        wins = list(pool.map(lambda result: write_result(tmp_path, result), results))
    assert wins.count(True) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert json.loads((tmp_path / "result.json").read_text())["rank"] == wins.index(True)


def test_an_earlier_attempts_result_is_cleared(tmp_path: Path) -> None:
    write_result(tmp_path, failure("oom", "build", "no memory", rank=2))
    clear_result(tmp_path)
    clear_result(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_cannot_be_serialized_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_result(tmp_path, {"status": object()})
    assert list(tmp_path.iterdir()) == []
