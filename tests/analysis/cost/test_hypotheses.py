"""What a framework keeps in memory, inferred from its trials."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.cost.hypotheses import NAMED, hypotheses, log_probability, reweighed
from analysis.cost.memory import MemoryConstants, reported
from analysis.cost.memory_fit import MemoryModel
from search_spaces.frameworks import Framework
from search_spaces.known import FRAMEWORKS, framework_named
from trainer.plan.jobs import Jobs, jobs

LIMIT = 80 * 2.0**30
LEAN = FRAMEWORKS["megatron-lm"].with_habits(name="in-house", gradient_bytes=2.0)


@pytest.fixture(scope="module")
def tried() -> Jobs:
    """A model of 13B on 64 GPUs: from splits that need a few GiB to those that need too many."""
    degrees = [(tp, pp, mbs) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2, 4)]
    tp, pp, mbs = (np.array(column, dtype=float) for column in zip(*degrees, strict=True))
    one = np.ones(len(degrees))
    dp = 64 / (tp * pp)
    shape = {
        "num_layers": 40,
        "hidden_size": 5120,
        "num_heads": 40,
        "kv_heads": 40,
        "ffn_size": 13824,
        "gated": 1,
        "vocab_size": 32000,
        "seq_length": 2048,
        "tied_embeddings": 0,
    }
    columns = {name: value * one for name, value in shape.items()}
    columns |= {"tp": tp, "pp": pp, "dp": dp, "mbs": mbs, "gas": 64 / dp, "zero_stage": one}
    return jobs(columns | {"sequence_parallel": tp > 1, "recompute": 0 * one})


def evidence(framework: Framework, of: Jobs) -> tuple[np.ndarray, np.ndarray]:
    """Peaks as the framework would report them, nan where it fails, and which fail."""
    peaks, held = reported(of, framework, MemoryConstants())
    failed = np.maximum(peaks, held) > LIMIT
    return np.where(failed, np.nan, peaks), failed


def test_a_named_framework_has_most_of_the_weight_and_an_unknown_one_none() -> None:
    for name in ("nanotron", "in-house"):
        found = hypotheses(framework_named(name))
        assert sum(weight for _, weight in found) == pytest.approx(1)
        own = [weight for habits, weight in found if habits == framework_named(name)]
        assert own == ([NAMED] if name == "nanotron" else [])
    unknown = hypotheses(framework_named("in-house"))
    assert {habits.gradient_bytes for habits, _ in unknown} == {2, 4}
    assert {habits.name for habits, _ in unknown} == {name for name, known in FRAMEWORKS.items()}


def test_records_count_equally_and_those_before_fused_attention_hardly_for_attention() -> None:
    shares = dict.fromkeys(FRAMEWORKS, 0.0)
    writing = dict.fromkeys(FRAMEWORKS, 0.0)
    for habits, weight in hypotheses(framework_named("in-house")):
        shares[habits.name] += weight
        writing[habits.name] += weight * (not habits.flash_attention)
    assert [*shares.values()] == pytest.approx([1 / len(FRAMEWORKS)] * len(FRAMEWORKS))
    assert [share > 0 for share in writing.values()] == [
        not record.flash_attention for record in FRAMEWORKS.values()
    ]
    assert 0 < sum(writing.values()) < 0.15


def test_one_peak_above_all_expectations_does_not_prove_that_scores_are_written(
    tried: Jobs,
) -> None:
    """An allocator that holds a third more explains it as well, so other splits may still fit."""
    habits = framework_named("in-house")
    peaks = 4 / 3 * reported(tried, FRAMEWORKS["megatron-lm"], MemoryConstants())[0]
    split = np.flatnonzero(
        (tried.layout.tp == 4) & (tried.layout.pp == 1) & (tried.layout.mbs == 1)
    )
    never = np.zeros(1, dtype=bool)
    told = MemoryModel(habits=hypotheses(habits)).calibrated(
        tried[split], habits, peaks[split], never, LIMIT
    )
    fused = sum(weight for one, weight in told.habits if one.flash_attention)
    assert fused > 0.5


@pytest.mark.parametrize("named", ["megatron-lm", "in-house"])
def test_habits_that_differ_from_the_record_are_learnt_from_a_dozen_trials(
    tried: Jobs, named: str
) -> None:
    """The framework keeps gradients of 16 bits where its record, if it has one, says 32."""
    peaks, failed = evidence(LEAN, tried)
    habits = framework_named(named)
    start = MemoryModel(habits=hypotheses(habits))
    some = np.random.default_rng(0).permutation(len(tried))[:12]
    told = start.calibrated(tried[some], habits, peaks[some], failed[some], LIMIT)
    sure = MemoryModel().calibrated(tried[some], habits, peaks[some], failed[some], LIMIT)
    off, off_before = (
        np.abs(np.log(model.peak_bytes(tried, habits) / peaks))[~failed].max()
        for model in (told, sure)
    )
    assert off < 0.1 < off_before
    assert told.habits[0][0].gradient_bytes == 2
    fits = told.fits(tried, habits, LIMIT)
    knowing = MemoryModel().fits(tried, LEAN, LIMIT)  # what is outside the allocator counts, too
    assert ((fits > 0.5) == (knowing > 0.5)).mean() > 0.95
    assert np.abs(fits - knowing).mean() < 0.01


def test_a_search_is_less_sure_of_what_just_fits_than_the_formulas_are(tried: Jobs) -> None:
    sure = MemoryModel().fits(tried, LEAN, LIMIT)
    doubtful = MemoryModel().supposing(((LEAN, 1.0),)).fits(tried, LEAN, LIMIT)
    near = (sure > 0.6) & (sure < 0.99)
    assert near.any() and (doubtful[near] < sure[near]).all()
    far = (sure < 1e-9) | (sure > 1 - 1e-9)
    assert far.any() and doubtful[far] == pytest.approx(sure[far], abs=0.01)


def test_before_any_trial_what_fits_by_some_habits_only_is_neither_sure_nor_out(
    tried: Jobs,
) -> None:
    unknown = framework_named("in-house")
    fits = MemoryModel(habits=hypotheses(unknown)).fits(tried, unknown, LIMIT)
    each = [MemoryModel().fits(tried, habits, LIMIT) for habits, _ in hypotheses(unknown)]
    disputed = (np.max(each, axis=0) > 0.99) & (np.min(each, axis=0) < 0.01)
    assert disputed.any() and (np.abs(fits[disputed] - 0.5) < 0.49).all()
    # How unsure the constants leave each is taken from one for all.
    weights = [weight for _, weight in hypotheses(unknown)]
    assert fits == pytest.approx(np.average(each, axis=0, weights=weights), abs=0.02)


def test_one_failure_of_another_cause_refutes_no_hypothesis() -> None:
    fits, failed = np.full(6, 0.999), np.array([True, False, False, False, False, False])
    found = reweighed(
        ((LEAN, 0.5), (FRAMEWORKS["fsdp"], 0.5)),
        np.array(
            [
                log_probability(fits, failed, np.zeros(0)),
                log_probability(np.full(6, 0.5), failed, np.zeros(0)),
            ]
        ),
    )
    assert found[0][0] == LEAN
    assert 0.5 < found[0][1] < 0.9
