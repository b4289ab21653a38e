"""``meshtune replay`` on small sweeps that the tests write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.run.fold import Run
from analysis.run.folder import RunFolder
from analysis.run.results import ResultsFile
from analysis.run.trial import Trial
from search_spaces import load_space
from workflows.cli.main import main
from workflows.optimizer.builtin import RandomPolicy
from workflows.optimizer.policy import Problem, Proposal
from workflows.optimizer.registry import POLICIES
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import recorded, repeats
from workflows.replay.play import Played, play, policy_for, summary

TRUTH = Path(__file__).parents[3] / "../shared/truth/h100_nanotron_sweep.csv"


@pytest.fixture
def sweep(made: Any, tmp_path: Path) -> Path:
    return made.write(tmp_path / "any.csv", [*made.rows(32), *made.rows(16)])


@pytest.fixture
def landscape(sweep: Path) -> Landscape:
    return recorded(sweep)[0][0]


def configs(landscape: Landscape, policy: Any, seed: int, trials: int) -> list[dict[str, Any]]:
    """What a policy proposes, in order."""
    played = play(
        landscape, policy_for(landscape, policy, seed), seed, max_trials=trials, until=None
    )
    return [dict(trial.config) for trial in played.run.trials.values()]


def test_a_sweep_has_a_landscape_for_each_model_and_every_row_is_an_answer(
    made: Any, sweep: Path
) -> None:
    found = recorded(sweep)[0]
    assert [x.key.split()[0] for x in found] == ["m16", "m32"]
    rows = {"m16": made.rows(16), "m32": made.rows(32)}
    for x in found:
        mine = rows[x.key.split()[0]]
        assert len(x.configs) == len(mine)
        assert x.best == pytest.approx(max(float(r.split(",")[-3] or 0) for r in mine))
        failed = sum(not a.ok for every in x.answers.values() for a in every)
        assert failed == sum(r.endswith(",1") for r in mine)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_every_policy_proposes_every_recorded_configuration_once(
    made: Any, tmp_path: Path, policy: str
) -> None:
    if policy == "optuna":
        pytest.importorskip("optuna")
    few = made.write(tmp_path / "few.csv", made.rows(32)[::6])
    landscape = recorded(few)[0][0]
    seen = configs(landscape, policy, 0, 1000)
    assert len(seen) == len(landscape.configs)
    assert all(config in seen for config in landscape.configs)


def test_the_default_policy_is_sooner_near_the_best_than_chance(landscape: Landscape) -> None:
    ours = play(landscape, policy_for(landscape, "meshtune", 0), 0, max_trials=16)
    assert (ours.trials_to(0.05) or 99) <= 4
    others = [play(landscape, policy_for(landscape, "random", s), s) for s in range(20)]
    assert np.mean([x.trials_to(0.05) or 99 for x in others]) > 8
    assert ours.failed_share() == 0 < np.mean([x.failed_share() for x in others])


def test_the_same_seed_is_the_same_game(landscape: Landscape) -> None:
    first, again, other = (configs(landscape, "random", seed, 10) for seed in (1, 1, 2))
    assert first == again != other


def test_nothing_of_a_batch_is_told_before_all_of_it_is_asked(landscape: Landscape) -> None:
    ended: list[int] = []

    class Spy(RandomPolicy):
        def propose(self, run: Run, max_nodes: int) -> Proposal | None:
            ended.append(sum(t.ended for t in run.trials.values()))
            return super().propose(run, max_nodes)

    spy = Spy(Problem(landscape.space, 0, only=landscape.configs))
    play(landscape, spy, 0, parallel=4, max_trials=12, until=None)
    assert ended == [0] * 4 + [4] * 4 + [8] * 4


def test_a_repeat_that_ran_outweighs_one_that_crashed(made: Any, tmp_path: Path) -> None:
    good, other = [r for r in made.rows(32) if r.endswith(",0")][:2]
    crashed = ",".join([*good.split(",")[:-3], "", "", "1"])
    landscape = recorded(made.write(tmp_path / "x.csv", [crashed, good, other]))[0][0]
    assert len(landscape.configs) == 2
    assert play(landscape, policy_for(landscape, "random", 0), 0).failed_share() == 0


def test_who_tries_the_best_configuration_has_found_it_whichever_repeat_is_told(
    made: Any, tmp_path: Path
) -> None:
    good, other = [r for r in made.rows(32) if r.endswith(",0")][:2]
    speed = float(good.split(",")[-3])
    repeats = [made.edited(good, tok_s=f"{factor * speed}") for factor in (1.0, 0.5, 2.0)]
    slow = made.edited(other, tok_s=f"{0.4 * speed}")
    landscape = recorded(made.write(tmp_path / "x.csv", [*repeats, slow]))[0][0]
    assert landscape.best == pytest.approx(speed)
    games = [play(landscape, policy_for(landscape, "random", s), s) for s in range(12)]
    assert {tuple(np.round(sorted(game.shares), 9)) for game in games} == {(0.4, 1.0)}
    told = {t.objective for game in games for t in game.run.trials.values()}
    assert sorted(filter(None, told)) == pytest.approx([x * speed for x in (0.4, 0.5, 1, 2)])


def test_summary_counts_what_was_never_found_as_one_more_than_all() -> None:
    found, lost = Played([0.0, 0.96, 0.5, 1.0]), Played([0.5, 0.0])
    rows = summary({"a": [found, found], "b": [lost, found]}, {"a": 4, "b": 9})
    a, b = rows["landscapes"]
    assert (a["trials_to_5pct"], a["trials_to_1pct"]) == (2, 4)
    assert (b["trials_to_5pct"], b["trials_to_1pct"]) == (6, 7)
    assert a["failed_share"] == 0.25
    assert b["worst_best_of_8"] == 0.5
    overall = rows["overall"]
    assert overall["trials_to_5pct"]["geometric_mean"] == pytest.approx(12**0.5)
    assert overall["trials_to_5pct"]["worst"] == 6
    assert overall["landscapes_with_5pct_in_first_8"] == 1


# ---- the command ----


def test_the_command_prints_and_writes_the_figures(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = made.write(tmp_path / "few.csv", [*made.rows(32)[::4], *made.rows(16)[::4]])
    out = tmp_path / "out.json"
    asked = ["replay", str(sweep), "--policy", "cost-model", "--seeds", "2", "--json", str(out)]
    assert main(asked) == 0
    assert "m16 H100-80GB" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["policy"] == "cost-model" and figures["seeds"] == 2
    assert {"key", "configs", "trials_to_5pct", "trials_to_1pct", "best_of_8", "failed_share"} <= (
        figures["landscapes"][0].keys()
    )
    assert figures["overall"]["trials_to_5pct"]["worst"] >= 1


def test_rows_that_are_not_replayed_are_counted_by_reason(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in made.rows() if row.endswith(",0")][:9]
    rows[0] = made.edited(rows[0], gbs="65")
    rows[1] = made.edited(rows[1], tok_s="")
    rows[2] = made.edited(rows[2], model="alone")
    rows[3] = made.edited(rows[3], model="alone too")
    path, out = made.write(tmp_path / "some.csv", rows), tmp_path / "out.json"
    asked = ["--policy", "random", "--seeds", "1", "--json", str(out)]
    assert main(["replay", str(path), *asked]) == 0
    reasons = {
        "mbs * gas * dp is not the global batch": 1,
        "neither ran nor failed": 1,
        "nothing to choose, or none that ran, in the row's landscape": 2,
    }
    assert json.loads(out.read_text())["left_out"] == reasons
    said = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    assert f"left out: 4 rows ({said})" in capsys.readouterr().out


def test_landscapes_can_be_named_by_columns(sweep: Path) -> None:
    found = recorded(sweep, ["model", "zero_stage"])[0]
    assert [x.key for x in found] == ["m16 0", "m16 1", "m32 0", "m32 1"]
    assert {c["zero_stage"] for c in found[1].configs} == {1}


@pytest.mark.parametrize(
    ("content", "flags", "complaint"),
    [
        (None, [], "no such file"),
        ("a,b\n1,2\n", [], "it has the columns a, b"),
        ("", [], "it has the columns none"),
        ("NO TP", [], "for the form 'sweep' lacks tp\n"),
        (("inf",), [], "tok_s is 'inf', accepted nothing, or a number up to 1e+15"),
        (("0",), [], "tok_s is '0', accepted a number above 0 in a row that ran"),
        (("1", "mbs"), [], "mbs is '-1', accepted a whole number from 1 to 1,000,000,000"),
        ("p:tp,objective\n1,2.0\n", [], "needs two configurations"),
        ("SWEEP", ["--landscape", "modell"], "no column modell; it has model, layers"),
        ("SWEEP", ["--landscape", "zero_stage"], "differ in num_layers"),
        ("FAILED", [], "nothing to replay"),
        ("SWEEP", ["--json", "no/such/folder.json"], "no folder"),
    ],
)
def test_what_cannot_be_replayed_is_a_clear_error(
    made: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | tuple[str, ...] | None,
    flags: list[str],
    complaint: str,
) -> None:
    path = tmp_path / "table.csv"
    if isinstance(content, tuple):  # the speed of one row, and a column that is -1 in it
        speed, *negative = content
        first, *ran = [row for row in made.rows() if row.endswith(",0")]
        made.write(path, [made.edited(first, tok_s=speed, **dict.fromkeys(negative, "-1")), *ran])
    elif content == "SWEEP":
        made.write(path, [*made.rows(32)[:8], *made.rows(16)[:8]])
    elif content == "FAILED":
        made.write(path, [r for r in made.rows(32) if r.endswith(",1")])
    elif content == "NO TP":
        path.write_text(made.columns.replace(",tp,", ",tensor,") + "\n")
    elif content is not None:
        path.write_text(content)
    assert main(["replay", str(path), *flags]) == 2
    assert complaint in capsys.readouterr().err


def test_a_row_that_says_neither_how_fast_it_ran_nor_that_it_failed_is_no_answer(
    made: Any, tmp_path: Path
) -> None:
    rows = [row for row in made.rows() if row.endswith(",0")]
    (whole,) = recorded(made.write(tmp_path / "whole.csv", rows))[0]
    rows[3] = made.edited(rows[3], tok_s="")
    (landscape,) = recorded(made.write(tmp_path / "blank.csv", rows))[0]
    assert len(landscape.configs) == len(whole.configs) - 1
    assert all(a.ok for every in landscape.answers.values() for a in every)


def test_rows_that_differ_in_a_column_that_is_not_read_are_told_as_repeats(
    made: Any, tmp_path: Path
) -> None:
    rows = [row for row in made.rows() if row.endswith(",0")]
    assert not repeats(recorded(made.write(tmp_path / "once.csv", rows))[0])
    path = tmp_path / "twice.csv"
    both = [f"{row},{flag}" for row in rows for flag in "01"]
    path.write_text("\n".join([f"{made.columns},compile", *both]))
    told = repeats(recorded(path)[0])
    assert told.startswith(f"repeats: {len(rows)} rows ") and told.endswith(": compile")


def test_a_replay_says_which_landscape_it_plays(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("workflows.cli.working.Working.__call__", lambda _, text: told.append(text))
    assert main(["replay", str(sweep), "--policy", "random", "--seeds", "2"]) == 0
    assert [text.split(", ")[-1] for text in told] == ["seed 1 of 2", "seed 2 of 2"] * 2


def test_without_optuna_the_error_names_the_remedy(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["replay", str(sweep), "--policy", "optuna"]) == 2
    assert "meshtune[peers]" in capsys.readouterr().err


@pytest.fixture
def recorded_run(tmp_path: Path) -> RunFolder:
    """A run of two parameters, one of them conditional, whose objective is minimized."""
    (tmp_path / "own.yaml").write_text(
        "version: 1\nname: own\ncluster: {name: toy, gpus_per_node: 2, memory_gib: 1, "
        "peak_fp32_tflops: 1}\ntrainer: {command: [train]}\nparameters: {zero_stage: [0, 3], "
        "secondary_shard: [1, 2], fused: [true, false]}\n"
        "conditions: {secondary_shard: 'zero_stage == 3'}\nobjective: {minimize: seconds}\n"
    )
    space = load_space(tmp_path / "own.yaml")
    folder = RunFolder(tmp_path / "run")
    folder.create(space)
    run = Run(folder.path)
    told: list[tuple[dict[str, Any], str, float | None]] = [
        ({"zero_stage": 0, "fused": True}, "ok", 4.0),
        ({"zero_stage": 3, "secondary_shard": 2, "fused": False}, "ok", 2.0),
        ({"zero_stage": 3, "secondary_shard": 1, "fused": False}, "timeout", None),
    ]
    for number, (config, kind, seconds) in enumerate(told, start=1):
        trial = Trial(number, config, 0.0, kind=kind, objective=seconds)
        trial.result = {"peak_memory_bytes": 1e9} if seconds else {}
        run.trials[number] = trial
    ResultsFile(folder).write(run)
    return folder


def test_a_runs_own_trials_are_replayed_in_its_own_space(recorded_run: RunFolder) -> None:
    (landscape,) = recorded(recorded_run.path)[0]
    assert recorded(recorded_run.path / "results.csv")[0][0].configs == landscape.configs
    assert landscape.best == 2.0
    assert [landscape.share(c) for c in landscape.configs] == [0.5, 1.0, 0.0]
    answers = [a for every in landscape.answers.values() for a in every]
    assert [a.kind for a in answers] == ["ok", "ok", "timeout"]
    assert answers[0].result == {"peak_memory_bytes": 1e9}
    played = play(landscape, policy_for(landscape, "meshtune", 0), 0)
    assert sorted(played.shares) == [0.0, 0.5, 1.0]


def test_an_objective_below_zero_is_near_the_best_only_where_it_is(recorded_run: RunFolder) -> None:
    path = recorded_run.path / "results.csv"
    path.write_text(path.read_text().replace(",4.0,", ",-4.0,").replace(",2.0,", ",-3.9,"))
    (landscape,) = recorded(path)[0]  # minimized
    assert landscape.best == -4.0
    assert [landscape.share(c) for c in landscape.configs] == [1.0, pytest.approx(0.975), 0.0]


def test_a_run_with_a_value_that_its_space_lacks_is_refused(
    recorded_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded_run.path / "results.csv"
    path.write_text(path.read_text().replace("False", "Maybe"))
    assert main(["replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert "results.csv:" in said and "p:fused is 'Maybe', accepted True, False" in said


@pytest.mark.skipif(not TRUTH.exists(), reason=f"there is no {TRUTH}")
def test_recorded_searches_are_near_the_best_at_once() -> None:
    found = recorded(TRUTH)[0]
    ours = [play(x, policy_for(x, "cost-model", 0), 0, max_trials=8, until=None) for x in found]
    assert len(found) > 10
    assert float(np.median([p.trials_to(0.05) or 99 for p in ours])) <= 2
    assert float(np.mean([p.failed_share() for p in ours])) < 0.1
