"""Every parallel layout trains the same model: compared with a plain loop in one process."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support import exactness_cases as cases
from support.exactness_cases import FEW_STEPS, GRAD_CLIP, STEPS
from support.expected_traffic import expected_traffic
from support.long_sweep import LongSweep
from trainer.plan.config import TrainConfig


def equals(
    found: dict[str, Any], expected: dict[str, Any], tolerance: float, steps: int = STEPS
) -> None:
    losses, norms = expected["losses"][:steps], expected["grad_norms"][:steps]
    assert found["losses"] == pytest.approx(losses, rel=tolerance)
    assert found["grad_norms"] == pytest.approx(norms, rel=10 * tolerance)
    assert found["skipped_steps"] == 0
    assert found["ranks_agree"]


def quick_and_heavy(quick: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[Any]:
    """Parameters of a test: jobs by their names."""
    return [
        *(pytest.param(case, id=case["id"]) for case in quick),
        *(pytest.param(case, id=case["id"], marks=pytest.mark.heavy) for case in more),
    ]


@pytest.fixture(scope="module")
def results(run_ranks) -> dict[str, Any]:
    """Of all but the long sweep, by the job's name."""
    references = [*cases.REFERENCES, *cases.in_few_steps(cases.FEW_REFERENCES)]
    quick = [
        *cases.QUICK,
        *cases.WITHOUT_SOME,
        *cases.SCHEDULES,
        *cases.VALIDATIONS,
        *cases.PACKED,
        *cases.SPECIAL,
        *cases.OFFLOADED,
        *cases.SPLIT,
        *cases.FUSED,
    ]
    more = [
        *cases.MORE_SCHEDULES,
        *cases.MORE_PACKED,
        *cases.MORE_VALIDATIONS,
        *cases.MORE_SPECIAL,
        *cases.MORE_OFFLOADED,
        *cases.MORE_SPLIT,
        *cases.MORE_FUSED,
    ]
    groups = (cases.in_few_steps(quick), cases.in_few_steps(more))
    return LongSweep(run_ranks, references, *groups, timeout_s=1_160)


@pytest.fixture(scope="module")
def every(run_ranks) -> dict[str, Any]:
    return LongSweep(
        run_ranks,
        cases.REFERENCES,
        [{**job, "config": job["config"] | cases.ALL_STEPS} for job in cases.EVERY],
    )


@pytest.mark.parametrize("case", [job["id"] for job in cases.QUICK])
def test_a_layout_trains_like_one_process(results: dict[str, Any], case: str) -> None:
    equals(results[case], results[f"{case.split()[0]} reference"], 1e-5, FEW_STEPS)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", [job["id"] for job in cases.EVERY])
def test_every_layout_trains_like_one_process(every: dict[str, Any], case: str) -> None:
    equals(every[case], every[f"{case.split()[0]} reference"], 1e-5)


def test_the_reference_learns_and_is_clipped_at_every_step(results: dict[str, Any]) -> None:
    for model in cases.MODELS:
        reference = results[f"{model} reference"]
        assert min(reference["grad_norms"]) > GRAD_CLIP
        assert reference["losses"][-1] < reference["losses"][0] - 0.1


def test_progress_is_told_after_each_step(results: dict[str, Any]) -> None:
    result = results["gpt one rank"]
    assert len(result["progress"]) == FEW_STEPS == len(result["step_times_s"])
    assert result["progress"][-1].startswith(f"step {FEW_STEPS}/{FEW_STEPS} loss")
    assert result["memory"]["allocated"] > 0
    assert result["device"]["type"] == "cpu"


@pytest.mark.parametrize(
    "case",
    [
        *("gpt gas below pp", "deep-gpt gas by no pp", "gpt buckets"),
        pytest.param("llama buckets pp", marks=pytest.mark.heavy),
    ],
)
def test_a_rare_schedule_trains_like_one_process(results: dict[str, Any], case: str) -> None:
    equals(results[case], results[f"{case.split()[0]} reference"], 1e-5, FEW_STEPS)


@pytest.mark.parametrize("case", quick_and_heavy(cases.COMPILED, cases.MORE_COMPILED))
def test_compiled_layers_train_like_one_process_each_in_one_graph(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    """A layer that falls into several graphs is an error; all layers have the same one."""
    found, model = results[case["id"]], case["id"].split()[0]
    equals(found, results[f"{model} reference"], 1e-5, FEW_STEPS)
    assert found["graphs"] == 1


@pytest.mark.parametrize("case", quick_and_heavy(cases.OFFLOADED, cases.MORE_OFFLOADED))
def test_offloaded_activations_change_no_bit(results: dict[str, Any], case: dict[str, Any]) -> None:
    plain, found = results[case["id"].removesuffix(" offloaded")], results[case["id"]]
    assert [found[name] for name in ("losses", "grad_norms")] == [
        plain[name] for name in ("losses", "grad_norms")
    ]
    assert found["buffers"] > plain["buffers"] == 0


@pytest.mark.parametrize("case", quick_and_heavy(cases.FUSED, cases.MORE_FUSED))
def test_products_fused_with_their_exchanges_change_rounding_at_most_and_no_byte(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    """Two ranks' sums have one order; of more ranks gloo's own is another one than ours."""
    plain, found = results[case["id"].removesuffix(" fused")], results[case["id"]]
    tolerance = 0.0 if case["config"]["tp"] == 2 else 1e-6
    for name in ("losses", "grad_norms"):
        assert found[name] == pytest.approx(plain[name], rel=tolerance, abs=0.0)
    assert found["ranks_agree"] and (found["graphs"] == 1 or "compile" not in case["config"])
    config = TrainConfig.parse({**case["config"], "measured_steps": FEW_STEPS})
    assert found["communication"] == expected_traffic(config, case["ranks"], 0)
    assert found["communication"] == plain["communication"]


def test_without_clipping_a_layout_still_trains_like_one_process(results: dict[str, Any]) -> None:
    equals(results["gpt no clip"], results["gpt no clip reference"], 1e-5, FEW_STEPS)
    clipped = results["gpt reference"]["losses"][:FEW_STEPS]
    assert results["gpt no clip"]["losses"] != pytest.approx(clipped, rel=1e-5)


@pytest.mark.parametrize("case", [job["id"] for job in cases.WITHOUT_SOME])
def test_the_goldfish_loss_is_the_same_in_every_layout(results: dict[str, Any], case: str) -> None:
    """The mean over all tokens that are left in the global batch, however many each rank has."""
    equals(results[case], results["gpt goldfish reference"], 1e-5, FEW_STEPS)
    plain = results["gpt reference"]["losses"][:FEW_STEPS]
    assert results[case]["losses"] != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("case", quick_and_heavy(cases.SCHEDULES, cases.MORE_SCHEDULES))
def test_every_layout_follows_the_schedule_of_the_learning_rate(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    equals(results[case["id"]], results["gpt schedule reference"], 1e-5, FEW_STEPS)


@pytest.mark.parametrize("case", quick_and_heavy(cases.PACKED, cases.MORE_PACKED))
def test_packed_documents_train_as_if_each_were_a_sequence_of_its_own(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    model = case["id"].split()[0]
    equals(results[case["id"]], results[f"{model} documents reference"], 1e-5, FEW_STEPS)
    one_stream = results[f"{model} reference"]["losses"][:FEW_STEPS]
    assert results[case["id"]]["losses"] != pytest.approx(one_stream, rel=1e-3)


@pytest.mark.parametrize("case", quick_and_heavy(cases.VALIDATIONS, cases.MORE_VALIDATIONS))
def test_validation_tells_the_loss_of_one_process_and_changes_nothing(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    """Neither what is learned, nor what a step sends."""
    found = results[case["id"]]
    kind = "goldfish" if "goldfish" in case["config"] else "reference"
    expected = results[f"gpt validated {kind}"]
    equals(found, expected, 1e-5, FEW_STEPS)
    assert found["validation_losses"].keys() == {"2", "3"}
    assert found["validation_losses"] == pytest.approx(expected["validation_losses"], rel=1e-5)
    config = TrainConfig.parse({**case["config"], "measured_steps": FEW_STEPS})
    assert found["communication"] == expected_traffic(config, case["ranks"], 0)


@pytest.mark.parametrize(
    ("precision", "zero_stage"),
    [
        *cases.QUICK_SIXTEEN,
        *(pytest.param(*case, marks=pytest.mark.heavy) for case in cases.OTHER_SIXTEEN),
    ],
)
def test_sixteen_bits_follow_float32_alike_in_every_zero_stage(
    results: dict[str, Any], precision: str, zero_stage: int
) -> None:
    expected = results["gpt reference"]["losses"][:FEW_STEPS]
    exact = {"bf16": 2**-8, "fp16": 2**-10}[precision]
    found = results[f"gpt {precision} zero {zero_stage}"]
    assert found["losses"] == pytest.approx(expected, rel=exact)
    assert found["losses"] != expected
    assert found["skipped_steps"] == 0


def test_a_mesh_in_bf16_follows_float32(results: dict[str, Any]) -> None:
    expected = results["llama reference"]["losses"][:FEW_STEPS]
    assert results["llama bf16 mesh"]["losses"] == pytest.approx(expected, rel=2**-8)


def test_an_overflow_skips_steps_on_all_ranks_until_the_scale_fits(results: dict[str, Any]) -> None:
    found = results["gpt overflow"]
    finite = [math.isfinite(norm) for norm in found["grad_norms"]]
    assert 0 < found["skipped_steps"] == finite.count(False) < STEPS
    assert finite[-1]
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert found["ranks_agree"]


def test_a_pipeline_holds_buffers_of_micro_batches_in_flight_only(results: dict[str, Any]) -> None:
    for case in ("gpt buffers", "deep-gpt buffers vpp"):
        assert results[case]["most"] <= 4  # of 16 micro-batches
        assert results[case]["after"] == 0
