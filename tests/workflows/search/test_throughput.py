"""Figures of a user's own trainer: completed by one convention, and refused if they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import MissingMetricError
from search_spaces import SearchSpace, SpaceError, load_space
from slurm import Kind, Outcome
from tests.support.objectives import objective_values
from trainer.plan.flops import model_flops
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
        ({"step_time_s": STEP_S, "tflops_per_gpu": 2000.0}, ["tflops_per_gpu", "its own is 2,000"]),
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


PACKED = SPACE.replace("parameters:\n", "parameters:\n  packing: [false, true]\n").replace(
    '"{recompute}"', '"{recompute}", "{packing}"'
)


def packed(folder: Path, objective: str = "tokens_per_second", log: str = "") -> SearchSpace:
    file = folder / "packed.yaml"
    file.write_text(PACKED.replace("OBJECTIVE", objective).replace("]}\nparam", f"]{log}}}\nparam"))
    return load_space(file)


def test_tokens_are_counted_where_packing_varies(tmp_path: Path) -> None:
    """Packed, a step takes 3 times as long and has 4 times the tokens: steps would mislead."""
    space = packed(tmp_path)
    flat = {"step_time_s": 1.0, "tokens_per_second": 8192.0}
    full = {"step_time_s": 3.0, "tokens_per_second": 10922.0}
    told = [
        objective_values(space, CONFIG | {"packing": packing}, result)
        for packing, result in ((False, flat), (True, full))
    ]
    assert told == [{"tokens_per_second": 8192.0}, {"tokens_per_second": 10922.0}]
    whole = checked_outcome(
        space, Outcome(Kind.OK, result=full, elapsed_s=100), CONFIG | {"packing": True}
    )
    assert whole.result and whole.kind is Kind.OK, whole.message
    assert whole.result["tokens_per_second_per_gpu"] == pytest.approx(10922 / 8)
    assert space.model
    of_token = model_flops(space.model, 1) / space.model.seq_length
    assert whole.result["tflops_per_gpu"] == pytest.approx(of_token * 10922 / 8 / 1e12)


def test_without_a_count_no_tokens_are_derived_where_packing_varies(tmp_path: Path) -> None:
    config = CONFIG | {"packing": True}
    for objective in ("tokens_per_second", "node_seconds_per_token"):
        with pytest.raises(MissingMetricError, match=r"packing varies.*MESHTUNE_RESULT"):
            objective_values(packed(tmp_path, objective), config, {"step_time_s": 1.0})
    result = {"samples_per_second": 16.0, "padded_tokens_per_second": 5e3}
    with pytest.raises(MissingMetricError, match=r"padded_tokens_per_second has padding"):
        objective_values(packed(tmp_path), config, result)
    assert objective_values(packed(tmp_path, "samples_per_second"), config, result)


def test_a_count_at_the_end_of_a_run_is_a_rate(tmp_path: Path) -> None:
    result = {"step_time_s": 1.0, "tokens": 12437, "run_time_s": 4.91}
    rate = {"tokens_per_second": pytest.approx(12437 / 4.91)}
    assert objective_values(packed(tmp_path), CONFIG | {"packing": False}, result) == rate
    assert objective_values(of(tmp_path, "tokens_per_second"), CONFIG, result) == rate


def test_an_objective_of_tokens_is_refused_where_a_log_counts_none(tmp_path: Path) -> None:
    """A progress bar has steps alone; that of ms-swift counts padding, whatever varies."""
    with pytest.raises(SpaceError, match="packing varies, and nothing counts real tokens"):
        packed(tmp_path, log=", result: {format: tqdm}")
    assert packed(tmp_path, "samples_per_second", ", result: {format: tqdm}")
    assert packed(tmp_path, log=", result: {format: trl}")
    file = tmp_path / "swift.yaml"
    text = SPACE.replace("OBJECTIVE", "tokens_per_second")
    file.write_text(text.replace("]}\nparam", "], result: {format: ms-swift}}\nparam"))
    with pytest.raises(SpaceError, match=r"as long as the data's rows.*padded_tokens_per_second"):
        load_space(file)


def test_tokens_that_have_padding_among_them_are_not_called_real(tmp_path: Path) -> None:
    """LLaMA-Factory counts the padding of packed sequences; passes over the data compare.

    It counts all padding if not told otherwise, as its adapter does.
    """
    with pytest.raises(SpaceError, match="padded_tokens_per_second has padding"):
        packed(tmp_path, log=", result: {format: llama-factory}")
    asked = (
        ", env: {A: b}, files: {job.yaml: {content: {include_num_input_tokens_seen: non_padding}}}"
    )
    space = packed(tmp_path, log=asked + ", result: {format: llama-factory}")
    result = {"tokens_per_second": 2210.0, "epochs_per_second": 0.035, "step_time_s": 0.9}
    flat, full = (CONFIG | {"packing": on} for on in (False, True))
    assert objective_values(space, flat, result) == {"tokens_per_second": 2210.0}
    with pytest.raises(MissingMetricError, match="maximize epochs_per_second"):
        objective_values(space, full, result)
    whole = checked_outcome(space, Outcome(Kind.OK, result=result, elapsed_s=100), full).result
    assert whole and whole["padded_tokens_per_second"] == 2210.0
    assert "tokens_per_second" not in whole


def test_frozen_weights_take_fewer_flops(tmp_path: Path) -> None:
    file = tmp_path / "lora.yaml"
    tuned = SPACE.replace("parameters:\n", "parameters:\n  tuning: [full, lora]\n")
    file.write_text(tuned.replace("OBJECTIVE", "tflops_per_gpu"))
    space, result = load_space(file), {"step_time_s": STEP_S}
    full, lora = (
        objective_values(space, CONFIG | {"tuning": one}, result)["tflops_per_gpu"]
        for one in ("full", "lora")
    )
    assert 0.66 < lora / full < 0.70
