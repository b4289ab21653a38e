"""``meshtune train RUN --elastic``: training goes on, whatever happens to its nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import Journal, Proposed, Run, Started, Trial, read_run
from search_spaces import SpaceError
from slurm import Lease, Outcome, TrialSpec, processes
from slurm.local.launcher import LocalLauncher
from slurm.local.server import marker
from slurm.outcome.step_log import StepReport, StopRule
from support.elastic_run import BATCH, BEST, SEQ, losses, searched
from trainer.plan.limits import ConfigError
from workflows.cli.main import main
from workflows.elastic import Searched, _Training, train_elastic, useful_share
from workflows.training_plan import TrainingPlan

STEPS = 24


class LosesANode(LocalLauncher):
    """Kills a rank of the first start after some steps; its node is down from then on."""

    lost = False

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        def rule(steps: Sequence[StepReport]) -> None:
            assert stop_rule is not None
            stop_rule(steps)
            if not self.lost and steps and steps[-1]["finished_steps"] >= 6:
                self.lost = True
                mark = marker(spec.name)
                os.kill(max(p for p in processes.all_pids() if mark in processes.open_files(p)),
                        signal.SIGKILL)  # fmt: skip

        return super().run(spec, lease, stop, rule)

    def down_nodes(self) -> set[str]:
        return {"local1"} if self.lost else set()


class Settles(LocalLauncher):
    """Notes which trials of killed drivers are looked for."""

    def settle(self, names: Iterable[str]) -> None:
        self.looked_for = [*getattr(self, "looked_for", []), tuple(names)]
        super().settle(self.looked_for[-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(tmp_path_factory.mktemp("elastic"))


def test_a_training_goes_on_under_another_layout_as_if_nothing_had_happened(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.outcome.watch._LONGEST_POLL_S", 0.01)  # to strike before the end
    tokens, out = STEPS * BATCH * SEQ - 1, tmp_path / "out"
    with closing(LosesANode(2)) as launcher:
        assert train_elastic(run, launcher, out, tokens) == 0
        assert launcher.lost
        assert train_elastic(run, launcher, tmp_path / "whole", tokens) == 0
    first, *others = read_run(out).trials.values()
    assert len(first.attempts[0].nodes) == 2 and others
    assert all(start.attempts[0].nodes == ("local0",) for start in others)
    assert all(0 < start.result["finished_before"] < STEPS for start in others)
    took_s = first.result["elapsed_s"] - first.result["start_up_s"] - first.result["tail_s"]
    assert took_s > 0 and first.result["start_up_s"] > 0 and first.result["tail_s"] >= 0
    assert 0 <= first.result["between_share"] < 1
    found, whole = losses(out), losses(tmp_path / "whole")
    assert len(found) == STEPS
    assert list(found.values()) == pytest.approx(list(whole.values()), rel=1e-6)
    record = json.loads((out / f"checkpoints/step-{STEPS:08}/training.json").read_text())
    assert record["samples"] == STEPS * BATCH
    assert "of the time was training that is kept" in capsys.readouterr().out
    share = useful_share(read_run(out), STEPS)
    assert share is not None and 0 < share < 1
    assert main(["status", str(out)]) == 0
    status = capsys.readouterr().out
    assert "state       not running; where tokens are left, the same `meshtune train`" in status
    assert f"saved       {STEPS} steps" in status and "no success" not in status
    assert useful_share(Run(out, seed=0), 0) is None
    # It keeps the search's own batch and formats, whatever layout its starts had, and what comes
    # again after the end looks for no trial without a name, which every process would be.
    assert json.loads((out / "base.json").read_text()) == BEST
    with closing(Settles(1)) as again:
        assert [train_elastic(run, again, out, tokens) for _ in range(3)] == [0, 0, 0]
        assert all(name for names in again.looked_for for name in names)

    # A driver that was killed left a start without an end; nothing is left to do.
    shutil.copytree(out, tmp_path / "killed")
    with closing(Journal(tmp_path / "killed")) as journal:
        number = max(journal.run.trials) + 1
        journal.write(Proposed(trial=number, config=BEST))
        journal.write(Started(trial=number, attempt=1, name="gone", nodes=("local0",)))
    with closing(LocalLauncher(1)) as launcher:
        assert train_elastic(run, launcher, tmp_path / "killed", tokens) == 0
        assert read_run(tmp_path / "killed").trials[number].kind == "preempted"
        # Checkpoints that cannot be read stay as they are, and no layout reads them.
        saved = sorted((tmp_path / "killed" / "checkpoints").glob("step-*"))
        for file in (file for path in saved for file in path.glob("*.distcp")):
            file.write_bytes(file.read_bytes()[:-9] + b"\0" * 9)
        capsys.readouterr()
        assert train_elastic(run, launcher, tmp_path / "killed", 2 * tokens) == 1
        told = capsys.readouterr()
        assert "3 starts in a row ended with the error above: mend its cause" in told.out
        assert "is damaged: its CRC-32 is" in told.err
        assert len(read_run(tmp_path / "killed").trials) == number + 3
        assert sorted((tmp_path / "killed" / "checkpoints").glob("step-*")) == saved
        shutil.rmtree(tmp_path / "killed" / "checkpoints")
        with pytest.raises(ConfigError, match="the checkpoints of this training are gone"):
            train_elastic(run, launcher, tmp_path / "killed", tokens)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_training_unless_nohup_started_it(
    run: Path, tmp_path: Path, ignored: bool
) -> None:
    class HangsUp(LocalLauncher):
        def run(self, spec: TrialSpec, lease: Lease, *rest: Any) -> Outcome:
            signal.raise_signal(signal.SIGHUP)
            return super().run(spec, lease, *rest)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with closing(HangsUp(1)) as launcher:
            code = train_elastic(run, launcher, tmp_path / "out", BATCH * SEQ)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == (0 if ignored else 3)


def test_slow_nodes_are_left_out_if_asked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of = Searched.plan

    def plan(self: Searched, nodes: int, training: Run | None = None) -> TrainingPlan:
        return replace(plan_of(self, nodes, training), slow={"local0": 1.7})

    monkeypatch.setattr(Searched, "plan", plan)
    with closing(LocalLauncher(2)) as launcher:
        assert train_elastic(run, launcher, tmp_path, 4 * BATCH * SEQ, avoid_slow=True) == 0
    [start] = read_run(tmp_path).trials.values()
    assert start.attempts[0].nodes == ("local1",)
    said = capsys.readouterr().out
    assert "left out as slow: local0" in said and "local0 is slow (1.7 times)" in said


@pytest.mark.parametrize(
    ("slower", "used", "says"),
    [
        (1.01, "local0 local1", ""),  # half of the nodes train less
        (99.0, "local0 local1", "slow nodes are used again"),  # another one was lost meanwhile
        (99.0, "local1", "left out as slow: local0"),
    ],
)
def test_slow_nodes_stay_where_less_is_trained_without_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    slower: float, used: str, says: str,
) -> None:  # fmt: skip
    plan_of, asked = Searched.plan, list[int]()

    def plan(self: Searched, nodes: int, training: Run | None = None) -> TrainingPlan:
        asked.append(nodes)
        assert len(asked) < 9
        if "again" in says and asked.count(1) > 1 and nodes == 1:
            raise SpaceError("no layout")
        return replace(plan_of(self, nodes, training), slow={"local0": slower})

    def start(self: object, plan: object, nodes: Sequence[str], *_: object) -> Outcome:
        raise InterruptedError(" ".join(nodes))

    monkeypatch.setattr(Searched, "plan", plan)
    monkeypatch.setattr(_Training, "_start", start)
    with closing(LocalLauncher(2)) as launcher, pytest.raises(InterruptedError) as started:
        train_elastic(run, launcher, tmp_path, 4 * BATCH * SEQ, avoid_slow=True)
    assert str(started.value) == used
    said = capsys.readouterr().out
    assert says in said if says else not said


def test_a_plan_says_what_to_start_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(run), "--nodes", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    parameters = told["parameters"]
    assert (told["num_nodes"], told["resharding"]) == (1, "under any layout")
    replicas = 2 // (parameters["tp"] * parameters["pp"])
    assert parameters["mbs"] * parameters["gas"] * replicas == BATCH
    assert 0 < told["useful_share"] < 1 and told["save_interval"] >= 1
    assert main(["plan", str(run), "--nodes", "1"]) == 0
    assert "tokens per day after failures on 1 node" in capsys.readouterr().out


def test_what_does_not_go_with_elastic_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(run), "--launcher", "local"]
    for wrong, says in (
        (["--elastic"], "--elastic needs --tokens"),
        (["--tokens", "9"], "--tokens goes with --elastic"),
        (["--elastic", "--tokens", "9", "--steps", "3"], "--steps does not go with --elastic"),
    ):
        assert main([*train, *wrong]) == 2
        assert says in capsys.readouterr().err
    own = tmp_path / "own"
    shutil.copytree(run, own)
    text = (run / "space.yaml").read_text().partition("\n")[2]
    before, _, after = text.partition("trainer:")
    rest = after[after.index("\nparameters:") :]
    command = 'trainer: {command: [train, "{tp}", "{pp}", "{mbs}", "{gas}", "{zero_stage}"], '
    (own / "space.yaml").write_text(f"{before}{command}framework: deepspeed-bf16}}{rest}")
    elastic = ["--elastic", "--tokens", "9", "--out", str(tmp_path / "out")]
    assert main(["train", str(own), "--launcher", "local", *elastic]) == 2
    assert "--elastic is for the built-in trainer" in capsys.readouterr().err
    assert main(["plan", str(own), "--nodes", "1"]) == 2
    assert "checkpoints of deepspeed-bf16 are not known to resume" in capsys.readouterr().err


def test_the_useful_share_counts_what_a_kept_step_took_on_average(tmp_path: Path) -> None:
    """A node that is slow now and then costs seconds that a median does not see."""
    training = Run(tmp_path, seed=0)
    told = [
        {"finished_before": 0, "step_time_s": {"median": 1.0, "mean": 2.0}, "elapsed_s": 40.0},
        {"finished_before": 10, "step_time_s": {"median": 1.0}, "elapsed_s": 8.0, "idle_s": 2.0},
    ]
    for number, result in enumerate(told, start=1):
        training.trials[number] = Trial(number, {}, 0.0, result=result)
    assert useful_share(training, 15) == pytest.approx((10 * 2.0 + 5 * 1.0) / 50)
