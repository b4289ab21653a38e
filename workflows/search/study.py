"""Ask and tell: a search whose trials the caller runs."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from analysis import (
    Ended,
    Event,
    Journal,
    Opened,
    ResultsFile,
    Run,
    RunError,
    RunFolder,
    Started,
    Trial,
)
from foundation.arguments import ArgumentError, checked_path, checked_text, checked_whole, refused
from foundation.files import explained
from foundation.messages import shown
from foundation.quantities import config_text
from search_spaces import SearchSpace, load_space
from slurm import Kind, Outcome
from workflows.optimizer.policy import Policy, Proposal
from workflows.optimizer.registry import DEFAULT, POLICIES, make_policy
from workflows.search.objectives import values_of
from workflows.search.trials import ended, proposed

LAUNCHER = "ask-tell"  # the journal's launcher
_ANY_WIDTH = 2**31


class ClosedError(ValueError):
    """The study is not open in this process; the message says how to open it."""


def space_of(space: SearchSpace | str | Path) -> SearchSpace:
    """A space itself, or the one that a file or a shipped name has.

    Raises:
        ArgumentError: if it is none of these.
        SpaceError: if it cannot be read.
    """
    if isinstance(space, SearchSpace):
        return space
    if not isinstance(space, (str, Path)):
        raise refused("space", space, "a space, a space file, or a shipped space's name")
    return load_space(str(space))


class Study:
    """Proposes trials and learns from their results; the caller writes the loop.

    >>> import meshtune
    >>> study = meshtune.Study("gpt_22b_frontier")
    >>> trial = study.ask()
    >>> sorted(trial.config)[:3]
    ['gas', 'mbs', 'num_nodes']
    >>> study.tell(trial, {"tflops_per_gpu": 61.5})
    >>> study.tell(study.ask(), "oom")
    >>> study.best.number, len(study.trials)
    (1, 2)

    Several trials may be asked for before the first is told, by any threads. With a folder
    everything is kept, and other processes that open it with the same call share the study: any of
    them may tell what another has asked for. Once a process has died or closed the study, ``ask``
    first returns the trials that it had asked for and nobody has told. The folder is a run like any
    other: ``meshtune.load``, ``report``, and the command ``meshtune status`` read it.

    Args:
        space: a space, a file, or the name of a shipped space.
        folder: of the run; default: nothing is kept after this process.
        policy: what chooses; see ``meshtune search --help``.
        seed: default: 0, or the run's own.

    Raises:
        ArgumentError: for an unusable argument, before anything is written.
        SpaceError: if the space cannot be read.
        FingerprintError: if the folder holds a run of another space.
        ValueError: if the folder holds a search that ran its own trials.
        RunBusyError: if a search runs in the folder, or another process keeps the study locked.
        RunError: if the folder cannot be written.
    """

    def __init__(
        self,
        space: SearchSpace | str | Path,
        folder: str | Path | None = None,
        *,
        policy: str = DEFAULT,
        seed: int | None = None,
    ) -> None:
        where = None if folder is None else checked_path("folder", folder)
        seed = None if seed is None else checked_whole("seed", seed, 0)
        self.space = space_of(space)
        POLICIES.get(checked_text("policy", policy))  # fails before anything is written
        self._temporary = None if where else tempfile.TemporaryDirectory(prefix="meshtune-")
        self._folder = RunFolder(where or Path(self._temporary.name))  # type: ignore[union-attr]
        self._folder.prepare(self.space)
        self._worker = self._folder.join()
        self._process, self._threads, self._closed = os.getpid(), threading.RLock(), False
        self._results = ResultsFile(self._folder)
        with self._worker.turn():
            self._journal = Journal(self.directory, sync=folder is not None, held=self._worker)
            try:
                self._policy = self._open(seed, policy)
            except BaseException:
                self._journal.close()
                raise

    def _open(self, seed: int | None, policy: str) -> Policy:
        run = self._journal.run
        if run.launcher not in ("", LAUNCHER):
            raise ValueError(
                f"{self.directory} holds a search whose trials are run by the launcher "
                f"{run.launcher!r}: resume it with `meshtune search`, or choose another folder"
            )
        self._folder.create(self.space)
        seed = run.seed if seed is None else seed
        made = make_policy(self.space, seed, policy)
        if self._worker.is_alone():  # a session lasts as long as any process has the study open
            self._journal.write(Opened.of(self.space, LAUNCHER, seed))
        return made

    @property
    def run(self) -> Run:
        """All that has happened, also in other processes."""
        with self._call(reading=True) as run:
            return run

    @property
    def directory(self) -> Path:
        return self._folder.path

    @property
    def trials(self) -> list[Trial]:
        """Every trial, in the order in which they were asked for."""
        with self._call(reading=True) as run:
            return [trial for _, trial in sorted(run.trials.items())]

    @property
    def best(self) -> Trial | None:
        with self._call(reading=True) as run:
            return run.best

    def ask(self, max_nodes: int = _ANY_WIDTH) -> Trial | None:
        """The next trial to run, with its ``number`` and ``config``.

        None if every configuration for at most ``max_nodes`` has been asked for.

        Raises:
            ArgumentError: for fewer than 1 node.
            ClosedError: after ``close``, and in a forked process.
            RunError, OSError: if a file cannot be written or read; call again.
        """
        max_nodes = checked_whole("max_nodes", max_nodes, 1)
        with self._call() as run:
            number = self._left_over(run, max_nodes)
            if number is None:
                try:
                    proposal = self._policy.propose(run, max_nodes)
                except ImportError as error:  # a first import, without a free file descriptor
                    raise RunError(explained(error)) from error
                if proposal is None:
                    return None
                event = proposed(run, proposal)
                self._journal.write(event)
                number = event.trial
            trial = run.trials[number]
            attempt = trial.next_attempt
            name = f"{_name(number, attempt)}-{self._worker.name}"
            self._journal.write(Started(trial=number, attempt=attempt, name=name, nodes=()))
            return trial

    def tell(
        self, trial: Trial | int, result: Mapping[str, Any] | str | Kind, message: str = ""
    ) -> None:
        """Say how a trial ended.

        Args:
            trial: from :meth:`ask`, or its number.
            result: its metrics, with the objective; or how it failed: ``oom``, ``timeout``,
                ``crash``, ``diverged``, ``invalid``, ``host_oom``. After a failure of the machine
                (``node_failure``, ``launch_failure``, ``disk_full``, ``preempted``) ``ask``
                returns the trial again.
            message: about a failure, for the report.

        Raises:
            MissingMetricError: if the result has no number for the objective; names the metrics
                that it has.
            ArgumentError: for an unknown failure, a trial that does not run, a value that is not
                JSON, or metrics that contradict each other, the space's model or its cluster.
            ClosedError: after ``close``, and in a forked process.
            RunError, OSError: if the journal cannot be written; call again.
        """
        number = trial.number if isinstance(trial, Trial) else checked_whole("trial", trial, 0)
        checked_text("message", message)
        with self._call() as run:
            known = run.trials.get(number)
            running = known.running if known else None
            if known is None or running is None:
                raise ArgumentError(
                    f"trial {number} does not run: tell what `ask` gave, and only once"
                )
            event = self._ended(known, running.number, result, message)
            elapsed_s = self._journal.clock() - running.started_t
            self._journal.write(event.model_copy(update={"elapsed_s": elapsed_s}))
            self._results.stale = True
            self._results.catch_up(run)

    def add(
        self, config: Mapping[str, Any], result: Mapping[str, Any] | str | Kind, message: str = ""
    ) -> Trial:
        """Tell a trial that ran without this study, such as a row of an old table.

        A configuration that has succeeded before is measured once more.

        Args:
            config: a value for each parameter of the space.
            result, message: see :meth:`tell`, whose errors it raises as well.

        Raises:
            ArgumentError: for a configuration that the space does not have.
        """
        checked_text("message", message)
        if not isinstance(config, Mapping):
            raise refused("config", config, "a dict with a value for each parameter")
        with self._call() as run:
            config = _plain(config)
            if problem := self.space.first_violation(config):
                raise ArgumentError(f"config {config_text(config)}: {problem}")
            config = self.space.canonical(config)
            same = next((t for t in run.trials.values() if t.ok and t.config == config), None)
            new = proposed(run, Proposal(config, "added", "measured without this study"))
            trial = same or Trial(new.trial, config, 0.0)
            number, attempt = trial.number, trial.next_attempt
            end = self._ended(trial, attempt, result, message)  # raises before anything is written
            name = f"{_name(number, attempt)}-{self._worker.name}"
            began = Started(
                trial=number, attempt=attempt, name=name, nodes=(), repeat=same is not None
            )
            events: list[Event] = [began, end] if same else [new, began, end]
            for event in events:
                self._journal.write(event)
            self._results.stale = True
            self._results.catch_up(run)
            return run.trials[number]

    def _ended(
        self, trial: Trial, attempt: int, result: Mapping[str, Any] | str | Kind, message: str
    ) -> Ended:
        """The end of an attempt; raises for the caller, rather than record a crash of the trial."""
        if isinstance(result, Mapping):
            result = _plain(result)
            for wanted in (self.space.objectives, self.space.subject_to):
                values_of(wanted, self.space, trial.config, result)
            outcome = Outcome(Kind.OK, result=result, message=message)
        else:
            outcome = Outcome(_failure(result), message=message)
        # The trial may have run elsewhere, or long ago: the time since `ask` checks no metric.
        event = ended(self.space, trial, attempt, (), outcome)
        if outcome.kind is Kind.OK and event.kind == Kind.CRASH:
            raise ArgumentError(f"trial {trial.number}: {event.message}")
        return event

    def close(self) -> None:
        """Write the results and unlock the run; a second call does nothing.

        Raises:
            RunError, OSError: if the results cannot be written; the study is closed, and nothing
                is lost.
        """
        if self._closed or os.getpid() != self._process:
            return
        with self._threads:
            try:
                with self._call() as run:
                    self._results.write(run)
            finally:
                self._closed = True
                self._journal.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a study cannot be sent to another process: {self._to_open}")

    @contextmanager
    def _call(self, reading: bool = False) -> Iterator[Run]:
        """The run as it is now; no other thread or process changes it meanwhile."""
        if os.getpid() != self._process:  # forked, perhaps while a thread had the lock
            raise ClosedError(f"this study is open in process {self._process}: {self._to_open}")
        with self._threads:
            if self._closed and not reading:
                raise ClosedError(f"this study is closed: {self._to_open}")
            if self._closed:
                yield self._journal.run
                return
            with self._worker.turn():
                if self._worker.locks:
                    self._journal.catch_up()
                yield self._journal.run

    @property
    def _to_open(self) -> str:
        if self._temporary:
            return "its trials were not kept, as it has no folder"
        return f"meshtune.Study(space, {str(self.directory)!r}) opens it"

    def _left_over(self, run: Run, max_nodes: int) -> int | None:
        """A trial to run again: the machine failed, or the process that asked for it is gone."""
        for number, trial in sorted(run.trials.items()):
            if trial.ended or self.space.num_nodes(trial.config) > max_nodes:
                continue
            if trial.running:
                name = _name(number, trial.running.number)
                if self._worker.lives(trial.running.name.removeprefix(name).removeprefix("-")):
                    continue
                lost = Outcome(Kind.PREEMPTED, message="never told; asked for again")
                self._journal.write(ended(self.space, trial, trial.running.number, (), lost))
            if not trial.ended:  # not for ever: the trial may be what ends the process
                return number
        return None


def _name(number: int, attempt: int) -> str:
    return f"{LAUNCHER}-{number}-{attempt}"


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result in JSON's types, also from the numbers and arrays of numpy and torch."""
    plain: dict[str, Any] = {}
    for key, value in result.items():
        try:
            plain[str(key)] = json.loads(json.dumps(value, default=lambda each: each.tolist()))
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            accepted = "numbers, texts, and lists and dicts of them"
            raise refused(f"the result's {shown(repr(key), 60)}", value, accepted) from error
    return plain


def _failure(kind: str | Kind) -> Kind:
    accepted = [each.value for each in Kind if each is not Kind.OK]
    if not isinstance(kind, str) or kind not in accepted:
        raise refused("result", kind, f"{', '.join(accepted)}, or a dict of metrics")
    return Kind(kind)
