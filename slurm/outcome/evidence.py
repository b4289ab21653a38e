"""Evidence of a trial's end: its result and its logs, which may be wrong or damaged."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slurm.logs.text import cut_lines, read_log
from slurm.outcome.result import RESULT_NAME, find_result, result_of_lines
from slurm.outcome.step_log import EarlyStop, steps_in
from slurm.outcome.texts import NO_TEXTS, LauncherTexts
from slurm.outcome.watch import Termination, Watched, first_failed, note_failures
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec

WRITTEN_NAMES = ("config.json", "trial.json", "command.txt")  # into a trial's folder, by us


@dataclass(frozen=True)
class Evidence:
    """All that is known of an ended trial."""

    termination: Termination
    elapsed_s: float
    early_stop: EarlyStop | None = None  # if the stop rule ended it
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    complete: bool = False  # the result is the trainer's own statement, not read from its log
    reached_end: bool = False  # it stated its result, or its last step: an evaluation may follow
    no_result: str = ""  # why there is none
    steps: int | None = None  # number of steps reported; None: unknown
    stdout: str = ""
    stderr: str = ""
    nodes: tuple[str, ...] = ()
    timeout_s: float = float("inf")
    no_progress_timeout_s: float | None = None
    down_nodes: frozenset[str] = frozenset()  # nodes of the lease that are known to be down
    stuck_nodes: tuple[str, ...] = ()  # nodes with processes that do not die
    # how others have ended it: by killing or stopping a process of the launcher, or by a signal
    severed: str = ""
    failed_on: str = ""  # node of the first rank that failed, if agents have said so
    oom_kills: int = 0  # processes that the kernel killed meanwhile, if agents have counted them
    not_started: str = ""  # why ranks could not be started
    not_started_on: tuple[str, ...] = ()  # nodes suspected of causing that
    unwritten: str = ""  # why the launcher could not write all of the logs
    launcher_said: str | None = None  # output of the launcher's programs; None: it is in stderr
    texts: LauncherTexts = NO_TEXTS  # patterns of the launcher's messages

    @property
    def said(self) -> str:
        """Text in which the launcher's own messages are searched."""
        return self.stderr if self.launcher_said is None else self.launcher_said


def clear_attempt(directory: Path) -> None:
    """Make a trial's folder ready for an attempt.

    Results and logs of an earlier attempt are removed, so that they cannot pass for this one's. A
    folder in the place of a file, or a file in the place of the folder, may be of value: it is
    moved aside.

    Raises OSError if that fails; this machine or its disk is to blame.
    """
    if os.path.lexists(directory) and not _is_usable(directory):
        _move_aside(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (RESULT_NAME, STDOUT_NAME, STDERR_NAME, *WRITTEN_NAMES):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                _move_aside(path)
            elif name not in WRITTEN_NAMES or not stat.S_ISREG(mode):
                path.unlink()


def _is_usable(directory: Path) -> bool:
    own = directory.is_dir() and not directory.is_symlink()  # a link leads to somebody's files
    return own and os.access(directory, os.R_OK | os.W_OK | os.X_OK)


def _move_aside(path: Path) -> None:
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    path.rename(aside)


def _ended_by(log: str, said: str) -> str:
    """A log, with the launcher's last lines appended unless it has them."""
    if log.endswith(said):
        return log
    return log + ("\n" if log and not log.endswith("\n") else "") + said


def gather(
    spec: TrialSpec,
    lease: Lease,
    watched: Watched,
    exit_code: int | None,
    codes: Mapping[int, int] = MappingProxyType({}),
    **known: Any,
) -> Evidence:
    """Collect the evidence of a trial whose processes are gone.

    ``codes`` are exit codes by rank, in the order of the ranks' ends; the log gets lines on failed
    ranks. ``known`` are further fields of :class:`Evidence`.
    """
    said = note_failures(spec, lease, codes)
    failed = first_failed(codes)
    whole_stdout, no_stdout = read_log(spec.directory / STDOUT_NAME)
    stdout = cut_lines(whole_stdout)
    whole_stderr, no_stderr = read_log(spec.directory / STDERR_NAME)
    stderr = _ended_by(cut_lines(whole_stderr), said)
    result, no_result = find_result(spec.directory, whole_stdout)
    complete, no_metrics = result is not None, ""
    reached_end = complete
    # A log that was cut short has the metrics of some steps, not of the trial.
    cut_short = watched.termination is Termination.STOPPED_EARLY or watched.severed
    if result is None and not cut_short:
        result, no_metrics, reached_end = result_of_lines(spec, whole_stdout, (stdout, stderr))
    if result is None:
        no_result = "; ".join(filter(None, (no_metrics, no_result, no_stdout, no_stderr)))
    return Evidence(
        **vars(watched),
        exit_code=exit_code,
        result=result,
        complete=complete,
        reached_end=reached_end,
        no_result=no_result,
        steps=len(steps_in(whole_stdout)),
        stdout=stdout,
        stderr=stderr,
        nodes=lease.nodes,
        timeout_s=spec.timeout_s,
        no_progress_timeout_s=spec.no_progress_timeout_s,
        failed_on=lease.nodes[failed[0] // spec.ranks_per_node] if failed else "",
        **known,
    )
