"""``meshtune train RUN --elastic``: training that continues with the best layout for its nodes.

Each start is planned anew (``TrainingPlan``) and resumes from the latest complete checkpoint. The
folder is a run whose trials are the starts: the journal has each before it begins, and afterwards
the times of its steps.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from analysis import (
    Best,
    Ended,
    Journal,
    Metrics,
    MissingFactError,
    NotPricedError,
    Opened,
    Proposed,
    Run,
    RunFolder,
    Started,
    read_run,
)
from foundation.files import read_json
from foundation.messages import printable
from foundation.quantities import counted
from foundation.writing import write_atomically
from search_spaces import SearchSpace, SpaceError
from slurm import (
    BLAMELESS,
    AllocationState,
    GrowingLog,
    Kind,
    Launcher,
    Lease,
    Outcome,
    StepLog,
    StepReport,
)
from trainer.plan.limits import ConfigError
from workflows.search.reporting import drop_closed_output, ending_signals, handling
from workflows.search.stopping import CONTINUE, DONE, FAILED, INTERRUPTED, MAX_IN_A_ROW
from workflows.search.trials import data_prefix, make_data
from workflows.train import Steps, changed, settle_earlier, spec_of
from workflows.training_plan import TrainingPlan

LOGS = "logs"  # folder of earlier starts' logs
LONGEST_PAUSE_S = 60.0  # before the next start, after starts without a step
MAX_ALIKE = 3  # starts in a row with the same error before the first step: no layout helps


@dataclass(frozen=True)
class Searched:
    """A search whose winner is trained: its run, space, and what the training keeps of it."""

    run: Run
    space: SearchSpace
    base: Mapping[str, Any]  # the configuration whose batch and number formats stay

    @classmethod
    def of(cls, folder: Path, training: Run | None = None) -> Searched:
        """A search's best configuration, or the one with which its training began.

        Raises ConfigError if no trial has succeeded.
        """
        run, space = read_run(folder), RunFolder(folder).frozen_space()
        if training is not None and (file := training.folder.base_file).exists():
            return cls(run, space, read_json(file))
        if run.best is None:
            raise ConfigError(f"{folder}: {run.no_best}, so there is nothing to train")
        return cls(run, space, run.best.config)

    def plan(self, nodes: int, training: Run | None = None) -> TrainingPlan:
        """The layout for so many nodes; raises ConfigError if the cost model cannot price it."""
        try:
            return TrainingPlan.of(self.run, self.space, self.base, nodes, training)
        except (NotPricedError, MissingFactError) as error:
            raise ConfigError(f"{self.space.file}: no layout can be planned: {error}") from None

    def best(self, plan: TrainingPlan) -> Best:
        """The plan as a ``best.yaml``; raises ConfigError for other trainers and DeepSpeed."""
        space, config = plan.space, plan.config
        if space.trainer.builtin is None or config.get("engine") == "deepspeed":
            raise ConfigError(
                f"{self.space.file}: --elastic is for the built-in trainer; for another one "
                "`meshtune plan RUN --nodes N` says what to start with when the nodes have changed"
            )
        return Best(
            path=Path(self.space.file),
            num_nodes=plan.nodes,
            ranks_per_node=space.ranks_per_node,
            train=space.train_config(config, data_prefix(self.space, self.run.directory)),
            command=(),
            env=space.environment(config, Best.TRIAL_DIR),
            parameters=dict(config),
            log=space.program.log,
            files={},
            workdir=space.workdir,
            container=space.trainer.container,
        )


def resharding(space: SearchSpace) -> str:
    """How a trainer's checkpoints resume under another layout.

    Raises ConfigError if they are not known to.
    """
    framework = space.program.habits
    if not framework.reshards:
        raise ConfigError(
            f"{space.file}: checkpoints of {framework.name} are not known to resume under another "
            "layout: keep the layout, or wait for as many nodes as it needs"
        )
    return framework.reshards


def train_elastic(
    folder: Path,
    launcher: Launcher,
    out: Path,
    tokens: float,
    save: Path | None = None,
    avoid_slow: bool = False,
) -> int:
    """Train a run's winner in the folder ``out``, on the available nodes; returns the exit code."""
    out = out.absolute()
    RunFolder(out).create(RunFolder(folder).frozen_space())  # refuses another space's training
    with closing(Journal(out, launcher.clock.time)) as journal:
        searched = Searched.of(folder, journal.run)
        write_atomically(RunFolder(out).base_file, json.dumps(dict(searched.base)) + "\n")
        if data := data_prefix(searched.space, searched.run.directory):
            make_data(data)
        if searched.space.trainer.container is not None:
            launcher.check_container(searched.space.trainer.container)
        save = save or out / "checkpoints"
        training = _Training(searched, launcher, journal, out, save, tokens, avoid_slow)
        numbers = (*ending_signals(), signal.SIGUSR1)
        with handling(dict.fromkeys(numbers, training.stop_on)):
            return training.run()


@dataclass
class _Training:
    searched: Searched
    launcher: Launcher
    journal: Journal
    out: Path
    save: Path
    tokens: float
    avoid_slow: bool = False  # leave slow nodes out
    stop: threading.Event = field(default_factory=threading.Event)
    code: int = CONTINUE  # if it is stopped
    left_out: set[str] = field(default_factory=set)  # suspected nodes
    avoided: set[str] = field(default_factory=set)  # used last: any of them may have failed
    vain: int = 0  # starts in a row without a new checkpoint
    error: str = ""  # the latest start's, if it made no step
    alike: int = 0  # starts in a row that ended with it

    def stop_on(self, number: int, _: Any) -> None:
        drop_closed_output()
        self.code = INTERRUPTED if number == signal.SIGINT else CONTINUE
        self.stop.set()

    def run(self) -> int:
        self._settle()
        starts = self.journal.run.trials.values()
        if any(start.result.get("saved") for start in starts) and not self.finished():
            raise ConfigError(
                f"{self.save}: the checkpoints of this training are gone: put them back, name "
                "their folder by --save, or begin anew with another --out"
            )
        space, launcher = self.searched.space, self.launcher
        own: dict[str, Any] = {"nodes": tuple(launcher.nodes()), "objectives": (), "subject_to": ()}
        own["objective"] = {"maximize": "tokens_per_second"}
        self.journal.write(Opened.of(space, launcher.name, **own))
        while True:
            finished, down = self.finished(), launcher.down_nodes()
            up = [node for node in launcher.nodes() if node not in down]
            nodes = [node for node in up if node not in self.left_out] or up
            nodes.sort(key=lambda node: node in self.avoided)
            if self.stop.is_set() or not nodes:
                return self._end("stopped" if nodes else "no node is left", self.code)
            try:
                plan = self.searched.plan(len(nodes), self.journal.run)
            except SpaceError:
                if len(nodes) < len(up):
                    self.left_out.clear()  # suspected nodes are better than no layout
                    if self.avoid_slow:
                        self.avoid_slow = False  # or they would be left out again, for ever
                        print("slow nodes are used again: no layout exists without them")
                    continue
                if not self.journal.run.trials:
                    raise
                return self._end("too few nodes are left for any layout", CONTINUE)
            if self.avoid_slow and (slowest := self._better_without(plan, nodes)):
                print(f"left out as slow: {slowest}")
                self.left_out.add(slowest)
                continue
            last = math.ceil(self.tokens / plan.tokens_per_step)
            if finished >= last:
                return self._end(f"trained {counted(finished, 'step')}", DONE)
            used = nodes[: plan.nodes]
            outcome = self._start(plan, used, finished, last)
            if (code := self._after(outcome, used, finished)) is not None:
                return code

    def _better_without(self, plan: TrainingPlan, nodes: Sequence[str]) -> str:
        """The slowest node, if more tokens per day are trained without it; else ""."""
        slow = (node for node in nodes if node in plan.slow and node not in self.left_out)
        slowest = max(slow, key=lambda node: plan.slow[node], default="")
        if slowest and len(nodes) > 1:
            with suppress(SpaceError):  # no layout without it
                without = self.searched.plan(len(nodes) - 1, self.journal.run)
                with_it = plan.expected["tokens_per_day"] / plan.slow[slowest]
                if without.expected["tokens_per_day"] > with_it:
                    return slowest
        return ""

    def finished(self) -> int:
        """Steps in the latest complete checkpoint."""
        names = [path.name.removeprefix("step-") for path in self.save.glob("step-*")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _settle(self) -> None:
        """End the start that a killed driver left running, and journal how far it came."""
        left = {n: a for n, t in self.journal.run.trials.items() if (a := t.running) is not None}
        settle_earlier(self.launcher, self.out, "")
        for number, attempt in left.items():
            log = GrowingLog.of_trial(self.out)[0].path
            ended_t = log.stat().st_mtime if log.exists() else attempt.started_t
            elapsed_s = max(0.0, ended_t - attempt.started_t)
            stepped_s = _took_s(StepLog.reported(self.out))
            times = {"start_up_s": max(0.0, elapsed_s - stepped_s)} if stepped_s else {}
            self._ended(number, Outcome(Kind.PREEMPTED, elapsed_s=elapsed_s), times)

    def _start(self, plan: TrainingPlan, nodes: Sequence[str], finished: int, last: int) -> Outcome:
        """Train until the last step, or until something ends it; journals begin and end."""
        best, steps = self.searched.best(plan), last - finished
        assert best.train is not None
        warmup = min(plan.space.trial.warmup_steps, steps - 1)
        best.train.update({"async_save": True, "metrics": {}} | best.train)
        best.train["warmup_steps"] = warmup
        best = changed(best, steps - warmup, self.save, min(plan.save_interval, steps))
        spec, run = spec_of(best, self.out), self.journal.run
        number = max(run.trials, default=0) + 1
        (self.out / LOGS).mkdir(exist_ok=True)
        for log in GrowingLog.of_trial(self.out):
            with suppress(FileNotFoundError):
                log.path.rename(self.out / LOGS / f"{number - 1:04d}-{log.path.name}")
        write_atomically(self.out / "config.json", json.dumps(best.train, indent=1) + "\n")
        settle_earlier(self.launcher, self.out, spec.name, others=False)
        times = {"idle_s": self.journal.clock() - run.last_t}
        self.journal.write(
            Proposed(trial=number, config=plan.config, by="elastic", expected=plan.expected)
        )
        self.journal.write(Started(trial=number, attempt=1, name=spec.name, nodes=nodes))
        print(printable(f"start {number} after {counted(finished, 'step')} of {last}: {plan}"))
        print(f"on {', '.join(nodes)}; logs in {self.out}", flush=True)
        seen = _Seen(self.out, self.journal.clock)
        outcome = self.launcher.run(spec, Lease(spec.name, tuple(nodes)), self.stop, seen)
        ended_t = self.journal.clock()
        seen(StepLog.reported(self.out), ended=True)
        if seen.first_t is not None:
            times["start_up_s"] = max(0.0, seen.first_t - run.trials[number].attempts[0].started_t)
            times["tail_s"] = max(0.0, ended_t - seen.last_t)
            stepped_s = max(
                seen.last_t - seen.first_t, took_s := _took_s(StepLog.reported(self.out))
            )
            times["between_share"] = 1 - took_s / stepped_s if stepped_s else 0.0
        if peak := Metrics(outcome.result or {}).get("peak_memory_bytes"):
            times["peak_memory_bytes"] = peak
        self._ended(number, outcome, times)
        return outcome

    def _ended(self, number: int, outcome: Outcome, times: Mapping[str, float]) -> None:
        """Journal the end of a start: its times, and its steps' times in the form of a trial's."""
        steps: Sequence[StepReport] = StepLog.reported(self.out)
        result: dict[str, Any] = {**times, "elapsed_s": outcome.elapsed_s, "saved": self.finished()}
        if steps:
            warmup = min(self.searched.space.trial.warmup_steps, len(steps) - 1)
            saved = [s["checkpoint_s"] for s in steps if "checkpoint_s" in s]
            result["finished_before"] = steps[0]["finished_steps"] - 1
            step_s = [s["step_time_s"] for s in steps[warmup:]]
            result["step_time_s"] = {"median": median(step_s), "mean": fmean(step_s)}
            if saved:
                result["checkpoint_s"] = {"median": median(saved)}
        self.journal.write(
            Ended(
                trial=number,
                attempt=1,
                kind=str(outcome.kind),
                objective=None,
                result=result,
                message=outcome.message,
                stderr_tail=outcome.stderr_tail,
                elapsed_s=outcome.elapsed_s,
                steps=len(steps),
                nodes=self.journal.run.trials[number].attempts[0].nodes,
                final=True,
            )
        )

    def _after(self, outcome: Outcome, used: Sequence[str], before: int) -> int | None:
        """The exit code if the session ends after this start; None: the next one follows."""
        if outcome.kind is Kind.OK:
            return None
        print(printable(f"{outcome.kind}: {outcome.message}"), file=sys.stderr, flush=True)
        if self.stop.is_set():
            return self._end("stopped", self.code)
        if outcome.kind is Kind.DIVERGED:
            return self._end("the loss diverged", FAILED)
        self.left_out |= {*outcome.suspect_nodes, *outcome.lost_nodes}
        unknown = outcome.kind in BLAMELESS and not outcome.suspect_nodes
        self.avoided = set(used) if unknown else set()
        self.vain = 0 if self.finished() > before else self.vain + 1
        if self.vain >= MAX_IN_A_ROW:
            return self._end(f"{self.vain} starts in a row saved no new checkpoint", FAILED)
        own = outcome.kind in (Kind.CRASH, Kind.INVALID) and not outcome.steps
        error = outcome.message if own else ""
        self.alike = self.alike + 1 if error == self.error else 1
        self.error = error
        if error and self.alike == MAX_ALIKE:
            return self._end(
                f"{MAX_ALIKE} starts in a row ended with the error above: mend its cause and run "
                "the same command, or begin anew with another --out",
                FAILED,
            )
        if self.launcher.allocation_state() is AllocationState.GONE:
            return self._end("the allocation is over", CONTINUE)
        if self.vain and not outcome.kind.observed and not outcome.steps:
            self.stop.wait(min(2.0**self.vain, LONGEST_PAUSE_S))
        return None

    def _end(self, why: str, code: int) -> int:
        print(f"{why}; {self.finished():,} steps are saved in {self.save}")
        if (share := useful_share(self.journal.run, self.finished())) is not None:
            print(f"{100 * share:.3g} % of the time was training that is kept")
        return code


class _Seen(Steps):
    """Prints steps, and notes when the first one began and the last one ended."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        super().__init__(folder)
        self._clock = clock  # the journal's, as for all times of a start
        self.first_t: float | None = None
        self.last_t = 0.0

    def __call__(self, steps: Sequence[StepReport], ended: bool = False) -> None:
        if len(steps) > self.printed:
            self.last_t = self._clock()
            self.first_t = self.first_t or self.last_t - _took_s(steps)
        super().__call__(steps, ended)


def _took_s(steps: Sequence[StepReport]) -> float:
    return float(sum(step["step_time_s"] + step.get("checkpoint_s", 0.0) for step in steps))


def useful_share(training: Run, finished: int) -> float | None:
    """Share of a training's time that went into its ``finished`` steps; None before any.

    The time between sessions, without nodes, does not count.
    """
    results = [trial.result for trial in training.trials.values()]
    starts = [result for result in results if "step_time_s" in result]
    if not starts:
        return None
    ends = [*(start["finished_before"] for start in starts[1:]), finished]
    kept_s = 0.0
    for start, end in zip(starts, ends, strict=True):
        step_s = start["step_time_s"]
        kept = max(0, end - start["finished_before"])
        kept_s += kept * step_s.get("mean", step_s["median"])  # older journals lack it
    whole_s = sum(r.get("elapsed_s", 0.0) + r.get("idle_s", 0.0) for r in results)
    return kept_s / whole_s if whole_s else None
