"""Figures of a user's own trainer: completed by one convention, and refused if they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search_spaces import SearchSpace, load_space
from slurm import Kind, Outcome
from trainer.plan.flops import model_flops
from workflows.search.objectives import objective_values
from workflows.search.throughput import job_of
from workflows.search.trials import checked_outcome

SPACE = """\
version: 1
model: gpt_22b
cluster: dgx_h100
trainer: {command: [train, "{tp}", "{mbs}", "{gas}", "{recompute}"]}
parameters:
  tp: [1, 2, 4, 8]
  mbs: [1, 2]
  gas: [8]
  recompute: [none, full]
objective: {maximize: OBJECTIVE}
"""
CONFIG = {"tp": 8, "mbs": 2, "gas": 8, "recompute": "full"}  # 16 sequences of 2,048 on 8 GPUs
STEP_S = 4.0


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    return of(tmp_path, "tflops_per_gpu")


def of(folder: Path, objective: str) -> SearchSpace:
    file = folder / "space.yaml"
    file.write_text(SPACE.replace("OBJECTIVE", objective))
    return load_space(file)


def ended(space: SearchSpace, result: dict[str, Any], elapsed_s: float = 100.0) -> Outcome:
    return checked_outcome(space, Outcome(Kind.OK, result=result, elapsed_s=elapsed_s), CONFIG)


def test_model_flops_are_counted_by_one_convention_whatever_the_trainer_says(
    space: SearchSpace,
) -> None:
    """A framework that counts what full recomputation repeats says a third too much."""
    assert space.model
    own = model_flops(space.model, 16) / STEP_S / 8 / 1e12
    outcome = ended(space, {"step_time_s": STEP_S, "tflops_per_gpu": own * 4 / 3})
    assert outcome.result
    assert outcome.result["tflops_per_gpu"] == pytest.approx(own)
    assert outcome.result["reported_tflops_per_gpu"] == pytest.approx(own * 4 / 3)


@pytest.mark.parametrize(
    "result",
    [
        {"step_time_s": STEP_S},
        {"step_time_s": {"median": STEP_S}},
        {"samples_per_second": 16 / STEP_S},
        {"tokens_per_second": 16 * 2048 / STEP_S},
        {"tokens_per_second_per_gpu": 2 * 2048 / STEP_S},
    ],
)
@pytest.mark.parametrize(
    ("objective", "figure"),
    [
        ("step_time_s.median", STEP_S),
        ("tokens_per_second", 16 * 2048 / STEP_S),
        ("samples_per_second", 16 / STEP_S),
    ],
)
def test_one_figure_of_speed_tells_the_others(
    tmp_path: Path, objective: str, figure: float, result: dict[str, Any]
) -> None:
    assert objective_values(of(tmp_path, objective), CONFIG, result) == {
        objective: pytest.approx(figure)
    }


@pytest.mark.parametrize(
    ("result", "told"),
    [
        # Milliseconds for seconds; a rate per GPU for the job's; and the reverse.
        ({"step_time_s": 4000.0}, ["step_time_s 4,000", "took 100 s"]),
        (
            {"step_time_s": STEP_S, "tokens_per_second": 1024.0},
            ["step_time_s 4", "tokens_per_second 8,192", "its own is 1,024"],
        ),
        ({"tokens_per_second": 8192.0 * 60}, ["tokens_per_second 491,520", "TFLOP/s per GPU"]),
        ({"tflops_per_gpu": 150e3}, ["tflops_per_gpu 150,000", "has at most"]),
        (
            {"step_time_s": STEP_S, "tflops_per_gpu": 2000.0},
            ["tflops_per_gpu", "its own is 2,000"],
        ),
    ],
)
def test_figures_that_cannot_both_be_true_are_a_crash_that_names_them(
    space: SearchSpace, result: dict[str, Any], told: list[str]
) -> None:
    outcome = ended(space, result)
    assert outcome.kind is Kind.CRASH
    for words in told:
        assert words in outcome.message, outcome.message


def test_a_batch_is_enough_for_sequences_per_second(tmp_path: Path) -> None:
    """Progress bars of Lightning count micro-batches, which accumulation makes many of."""
    file = tmp_path / "space.yaml"
    text = SPACE.replace("model: gpt_22b\n", "").replace("OBJECTIVE", "samples_per_second")
    file.write_text(text)
    space = load_space(file)
    for result in (
        {"micro_batches_per_second": 8 / STEP_S},
        {"micro_batch_time_s": STEP_S / 8},
        {"step_time_s": STEP_S},
    ):
        assert objective_values(space, CONFIG, result) == {"samples_per_second": 16 / STEP_S}
    assert ended(space, {"step_time_s": 4000.0}).kind is Kind.CRASH


def test_where_nothing_says_what_is_trained_figures_stand_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    nothing = SPACE.replace("model: gpt_22b\n", "").replace("  gas: [8]\n", "")
    file.write_text(nothing.replace(', "{gas}"', "").replace("OBJECTIVE", "tflops_per_gpu"))
    space = load_space(file)
    result = {"tflops_per_gpu": 5e9, "step_time_s": 1e9}
    assert job_of(space, CONFIG | {"gas": 8}) is None
    assert ended(space, result).result == result
