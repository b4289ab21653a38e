"""What a framework keeps in memory, inferred from its trials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cost.hypotheses import Doubts, Hypothesis
from analysis.cost.memory import MemoryConstants, reported
from analysis.cost.memory_fit import Measurements, MemoryModel
from analysis.cost.model import CostModel
from analysis.cost.time_constants import TimeConstants
from search_spaces import load_space
from search_spaces.frameworks import Framework, StatedHabits
from search_spaces.known import FRAMEWORKS, framework_named
from trainer.plan.jobs import Jobs, jobs

LIMIT = 80 * 2.0**30
LEAN = FRAMEWORKS["megatron-lm"].with_habits(name="in-house", gradient_bytes=2.0)


def seen(jobs: Jobs, peak_bytes: Any, failed: Any) -> Measurements:
    """Trials without step times."""
    return Measurements(jobs, np.full(len(jobs), np.nan), peak_bytes, failed)


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


def before(name: str) -> MemoryModel:
    """Memory of a framework before any trial."""
    return MemoryModel().supposing(Doubts(framework_named(name)))


def share(model: MemoryModel, **habits: object) -> float:
    """Weight of the hypotheses that have some habits."""
    right = [
        one.weight
        for one in model.habits
        if all(getattr(one.framework, name) == value for name, value in habits.items())
    ]
    return sum(right)


@pytest.mark.parametrize("name", ["nanotron", "in-house"])
def test_hypotheses_are_a_handful_whose_weights_are_probabilities(name: str) -> None:
    habits = before(name).habits
    assert sum(one.weight for one in habits) == pytest.approx(1)
    assert len(habits) <= 16 and habits[0].weight == max(one.weight for one in habits)
    assert {one.framework.name for one in habits} == {name}  # it is itself, with other habits


def test_a_named_framework_is_likely_as_its_record_says_and_never_surely() -> None:
    named = framework_named("nanotron")
    own = share(before("nanotron"), **{name: getattr(named, name) for name in Doubts(named).values})
    assert 0.5 < own < 0.95
    assert share(before("in-house"), gradient_bytes=2) > 0.1
    assert share(before("in-house"), gradient_bytes=4) > 0.1


def test_records_of_before_fused_attention_are_no_evidence_against_it() -> None:
    assert 0 < share(before("in-house"), flash_attention=False) < 0.15
    assert share(before("megatron-lm-v3"), flash_attention=False) > 0.8  # where it is named


def test_a_program_without_a_record_may_have_a_fused_loss_as_well_as_not() -> None:
    few = [one for one in before("in-house").habits if one.framework.logits_bytes <= 4]
    assert 0.5 < sum(one.weight for one in few) < 0.8
    assert share(before("nanotron"), logits_bytes=12) > 0.8  # where it is named


def test_nothing_is_ruled_out_that_a_program_of_today_may_run(tried: Jobs) -> None:
    """Before trials it may be like any record, or like one with what programs may have today."""
    start, habits = before("in-house"), framework_named("in-house")
    may, odds = (model.fits(tried, habits, LIMIT) for model in (start.cautious, start))
    frugal = {"fused_layers": True, "moment_bytes": 2, "expandable_segments": True}
    for name in ("megatron-bridge", "megatron-lm", "torchtitan", "composer", "nanotron"):
        for one in (FRAMEWORKS[name], FRAMEWORKS[name].with_habits(**frugal)):
            assert may[MemoryModel().fits(tried, one, LIMIT) > 0.99].min() > 0.95
    recipe = FRAMEWORKS["megatron-bridge"].with_habits(**frugal)
    runs = MemoryModel().fits(tried, recipe, LIMIT) > 0.99
    assert np.any(odds[runs] < 0.5)  # by which the search orders them


def test_trials_rule_out_what_no_plausible_habit_lets_run(tried: Jobs) -> None:
    start, habits = before("in-house"), framework_named("in-house")
    needs = MemoryModel().fits(tried, habits, LIMIT) < 0.01
    first = start.cautious.fits(tried, habits, LIMIT)[needs]
    told = start.calibrated(seen(tried, *evidence(habits, tried)), habits, LIMIT)
    assert share(told.cautious, fused_layers=True) < 0.05
    later = told.cautious.fits(tried, habits, LIMIT)[needs]
    assert np.mean(first > 0.5) > 0.1 and np.mean(later > 0.5) < np.mean(first > 0.5) / 3
    failed = np.flatnonzero(needs)[:1]  # one failure rules nothing out that has not failed
    once = start.calibrated(
        seen(tried[failed], np.array([np.nan]), np.ones(1, bool)), habits, LIMIT
    )
    rest = np.delete(np.arange(len(tried)), failed)
    runs = MemoryModel().fits(tried, FRAMEWORKS["megatron-bridge"], LIMIT)[rest] > 0.99
    assert once.cautious.fits(tried, habits, LIMIT)[rest][runs].min() > 0.9


def test_what_is_stated_is_not_doubted_where_jobs_are_ruled_out(tried: Jobs) -> None:
    said = StatedHabits(base="in-house", fused_layers=False, expandable_segments=False)
    stated = MemoryModel().supposing(Doubts(framework_named(said))).cautious
    assert share(stated, fused_layers=False, expandable_segments=False) == pytest.approx(1)


@pytest.mark.parametrize("base", ["nanotron", "in-house"])
def test_what_is_stated_holds_in_every_hypothesis(base: str) -> None:
    said = StatedHabits(base=base, gradient_bytes=2, flash_attention=False)
    start = MemoryModel().supposing(Doubts(framework_named(said)))
    assert share(start, gradient_bytes=2, flash_attention=False) == pytest.approx(1)
    assert len(start.habits) > 4  # the rest is as doubtful as it was


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
    told = before("in-house").calibrated(seen(tried[split], peaks[split], never), habits, LIMIT)
    assert share(told, flash_attention=True) > 0.5


@pytest.mark.parametrize("named", ["megatron-lm", "in-house"])
def test_habits_that_differ_from_the_record_are_learnt_from_a_dozen_trials(
    tried: Jobs, named: str
) -> None:
    """The framework keeps gradients of 16 bits where its record, if it has one, says 32."""
    peaks, failed = evidence(LEAN, tried)
    habits = framework_named(named)
    some = np.random.default_rng(0).permutation(len(tried))[:12]
    told = before(named).calibrated(seen(tried[some], peaks[some], failed[some]), habits, LIMIT)
    sure = MemoryModel().calibrated(seen(tried[some], peaks[some], failed[some]), habits, LIMIT)
    off, off_before = (
        np.abs(np.log(model.peak_bytes(tried, habits) / peaks))[~failed].max()
        for model in (told, sure)
    )
    assert off < 0.1 < off_before
    assert told.habits[0].framework.gradient_bytes == 2
    fits = told.fits(tried, habits, LIMIT)
    knowing = MemoryModel().fits(tried, LEAN, LIMIT)  # what is outside the allocator counts, too
    assert ((fits > 0.5) == (knowing > 0.5)).mean() > 0.95
    assert np.abs(fits - knowing).mean() < 0.01


def test_a_program_that_differs_from_its_record_in_two_habits_is_found(tried: Jobs) -> None:
    """No record, nor one with the other gradients, is like it: whole records cannot name it."""
    odd = FRAMEWORKS["megatron-lm"].with_habits(gradient_bytes=2, logits_bytes=12, logit_copies=2)
    peaks, failed = evidence(odd, tried)
    named = framework_named("megatron-lm")
    some = np.random.default_rng(1).permutation(len(tried))[:12]
    told = before("megatron-lm").calibrated(
        seen(tried[some], peaks[some], failed[some]), named, LIMIT
    )
    off = np.abs(np.log(told.peak_bytes(tried, named) / peaks))[~failed]
    assert np.median(off) < 0.02 and off.max() < 0.08


def test_outcomes_without_a_peak_are_evidence(tried: Jobs) -> None:
    """Runs that only halved gradients let fit, and that reported nothing."""
    lean, plain = (
        MemoryModel().fits(tried, one, LIMIT) for one in (LEAN, FRAMEWORKS["megatron-lm"])
    )
    disputed = np.argsort(plain - lean)[:3]
    assert (lean - plain)[disputed].min() > 0.25
    named, start = FRAMEWORKS["megatron-lm"], before("megatron-lm")
    nothing = np.full(3, np.nan)
    ran, failed = np.zeros(3, dtype=bool), np.ones(3, dtype=bool)
    for outcome, more in ((ran, True), (failed, False)):
        told = start.calibrated(seen(tried[disputed], nothing, outcome), named, LIMIT)
        assert (share(told, gradient_bytes=2) > share(start, gradient_bytes=2)) == more
        assert (told.fits(tried, named, LIMIT) > start.fits(tried, named, LIMIT))[
            disputed
        ].all() == more


def test_one_failure_blinds_the_search_to_nothing_that_was_surer(tried: Jobs) -> None:
    named, start = framework_named("in-house"), before("in-house")
    fits = start.fits(tried, named, LIMIT)
    unlucky = np.flatnonzero((fits > 0.8) & (fits < 0.95))
    assert len(unlucky)
    for row in unlucky:
        told = start.calibrated(
            seen(tried[[row]], np.array([np.nan]), np.ones(1, bool)), named, LIMIT
        )
        surer = fits > fits[row] + 0.02
        assert told.fits(tried[surer], named, LIMIT).min() > 0.4


def test_before_any_trial_what_fits_by_some_habits_only_is_neither_sure_nor_out(
    tried: Jobs,
) -> None:
    unknown, start = framework_named("in-house"), before("in-house")
    fits = start.fits(tried, unknown, LIMIT)
    each = [MemoryModel().fits(tried, one.framework, LIMIT) for one in start.habits]
    disputed = (np.max(each, axis=0) > 0.99) & (np.min(each, axis=0) < 0.01)
    assert disputed.any() and (np.abs(fits[disputed] - 0.5) < 0.49).all()
    # How unsure the constants leave each is taken from one for all.
    weights = [one.weight for one in start.habits]
    assert fits == pytest.approx(np.average(each, axis=0, weights=weights), abs=0.02)


def test_habits_without_an_effect_are_asked_for_once_and_keep_their_prior() -> None:
    asked: list[Framework] = []

    def evidence_of_gradients(one: Framework) -> tuple[float, None]:
        asked.append(one)
        return (2.0 if one.gradient_bytes == 2 else 0.0), None

    found = Doubts(framework_named("in-house")).weighed(evidence_of_gradients)
    assert isinstance(found[0], Hypothesis)
    assert sum(one.weight for one in found if one.framework.gradient_bytes == 2) > 0.6
    assert len(asked) < 80
    assert 0 < sum(one.weight for one in found if one.framework.fused_layers) < 0.5


def test_step_times_tell_which_records_constants_a_trainer_has(tried: Jobs) -> None:
    """Two thirds as fast as named, as another record's constants and its overlap say."""
    cluster = load_space("llama_8b_dgx_h100").cluster
    assert cluster is not None
    slow, fast = TimeConstants(), TimeConstants(gemm_share=0.95, launch_s=1e-4, overlap=0.9)
    quick = CostModel(cluster, FRAMEWORKS["megatron-bridge"], fast)
    measured = quick.predict(tried).step_time_s
    nothing = np.full(9, np.nan), np.zeros(9, dtype=bool)
    some = Measurements(tried[::4], measured[::4], *nothing)
    named = CostModel(cluster, framework_named("in-house"), slow)
    errors, learnt = [], []
    for model in (named, named.supposing({"megatron-bridge": fast})):
        learnt.append(model.calibrated(some))
        errors.append(np.abs(np.log(learnt[-1].predict(tried).step_time_s / measured)).mean())
    assert errors[1] < 0.6 * errors[0]
    assert learnt[1].framework.name == "in-house"  # it is itself, with another's constants
    assert learnt[1].constants.overlap > learnt[0].constants.overlap
