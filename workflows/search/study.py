"""Ask and tell: a search whose trials the caller runs."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import Journal, Opened, ResultsFile, Run, RunFolder, Started, Trial
from foundation.arguments import (
    ArgumentError,
    checked_path,
    checked_seed,
    checked_text,
    checked_whole,
    refused,
)
from foundation.messages import shown
from search_spaces import SearchSpace, load_space
from slurm import Kind, Outcome
from workflows.optimizer.registry import DEFAULT, POLICIES, make_policy
from workflows.search.objectives import objective_values
from workflows.search.trials import ended, proposed

LAUNCHER = "ask-tell"  # the journal's launcher
_ANY_WIDTH = 2**31


class ClosedError(ValueError):
    """The study is closed; the message says how to open it again."""


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

    Several trials may be asked for before the first is told. With a folder everything is kept, and
    after a crash the same call resumes: trials that were asked for can still be told, and ``ask``
    first returns those that were not. The folder is a run like any other: ``meshtune.load``,
    ``report``, and the command ``meshtune status`` read it.

    Args:
        space: a space, a file, or the name of a shipped space.
        folder: of the run; default: nothing is kept after this process.
        policy: what chooses; see ``meshtune search --help``.
        seed: default: 0, or the run's own.

    Raises:
        ArgumentError: for an unusable argument; nothing is made.
        SpaceError: if the space cannot be read.
        FingerprintError: if the folder holds a run of another space.
        ValueError: if the folder holds a search that ran its own trials.
        RunBusyError: if another process has this run.
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
        seed = None if seed is None else checked_seed(seed)
        self.space = space_of(space)
        POLICIES.get(checked_text("policy", policy))  # an error now, while nothing is made
        self._temporary = None if where else tempfile.TemporaryDirectory(prefix="meshtune-")
        self._folder = RunFolder(where or Path(self._temporary.name))  # type: ignore[union-attr]
        self._folder.prepare(self.space)
        self._journal = Journal(self._folder.path, sync=folder is not None)
        try:
            if self.run.launcher not in ("", LAUNCHER):
                raise ValueError(
                    f"{self._folder.path} holds a search whose trials are run by the launcher "
                    f"{self.run.launcher!r}: resume it with `meshtune search`, or choose another "
                    "folder"
                )
            self._folder.create(self.space)
            seed = self.run.seed if seed is None else seed
            self._policy = make_policy(self.space, seed, policy)
        except BaseException:
            self._journal.close()
            raise
        self._closed = False
        self._results = ResultsFile(self._folder)
        self._left = deque(n for n, trial in sorted(self.run.trials.items()) if not trial.ended)
        self._journal.write(
            Opened(
                space=self.space.name,
                fingerprint=self.space.fingerprint,
                seed=seed,
                launcher=LAUNCHER,
                **self.space.goals,
            )
        )

    @property
    def run(self) -> Run:
        return self._journal.run

    @property
    def directory(self) -> Path:
        return self._folder.path

    @property
    def trials(self) -> list[Trial]:
        """Every trial, in the order in which they were asked for."""
        return [trial for _, trial in sorted(self.run.trials.items())]

    @property
    def best(self) -> Trial | None:
        return self.run.best

    def ask(self, max_nodes: int = _ANY_WIDTH) -> Trial | None:
        """The next trial to run, with its ``number`` and ``config``.

        None if every configuration for at most ``max_nodes`` has been asked for.

        Raises:
            ArgumentError: for fewer than 1 node.
            ClosedError: after ``close``.
        """
        max_nodes = checked_whole("max_nodes", max_nodes, 1)
        self._check_open()
        number = self._from_before(max_nodes)
        if number is None:
            proposal = self._policy.propose(self.run, max_nodes)
            if proposal is None:
                return None
            event = proposed(self.run, proposal)
            self._journal.write(event)
            number = event.trial
        trial = self.run.trials[number]
        attempt = trial.next_attempt
        self._journal.write(
            Started(trial=number, attempt=attempt, name=f"{LAUNCHER}-{number}-{attempt}", nodes=())
        )
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
            ArgumentError: for an unknown failure, a trial that does not run, or a value that is
                not JSON.
            ClosedError: after ``close``.
        """
        number = trial.number if isinstance(trial, Trial) else checked_whole("trial", trial, 0)
        checked_text("message", message)
        self._check_open()
        known = self.run.trials.get(number)
        running = known.running if known else None
        if known is None or running is None:
            raise ArgumentError(f"trial {number} does not run: tell what `ask` gave, and only once")
        if isinstance(result, Mapping):
            result = _plain(result)
            # An error now, and not a crash of the trial.
            objective_values(self.space, known.config, result)
            outcome = Outcome(Kind.OK, result=result, message=message)
        else:
            outcome = Outcome(_failure(result), message=message)
        outcome = replace(outcome, elapsed_s=self._journal.clock() - running.started_t)
        end = ended(self.space, known, running.number, (), outcome)
        self._journal.write(end)
        if known.number in self._left:  # of an earlier process
            self._left.remove(known.number)
        if not end.final:
            self._left.append(known.number)
        self._results.stale = True
        self._results.catch_up(self.run)

    def close(self) -> None:
        """Write the results and unlock the run; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._results.write(self.run)
        self._journal.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            again = f"meshtune.Study(space, {str(self.directory)!r}) opens it again"
            raise ClosedError(
                f"this study is closed: {'its trials were not kept' if self._temporary else again}"
            )

    def _from_before(self, max_nodes: int) -> int | None:
        """A trial that an earlier call returned, and that has to run again."""
        for number in list(self._left):
            trial = self.run.trials[number]
            if self.space.num_nodes(trial.config) > max_nodes:
                continue
            self._left.remove(number)
            if trial.running:
                lost = Outcome(Kind.PREEMPTED, message="never told; asked for again")
                self._journal.write(ended(self.space, trial, trial.running.number, (), lost))
            if not trial.ended:  # not for ever: the trial may be what ends the process
                return number
        return None


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
