"""Runs that a team keeps: each as a space and its results, without command lines, paths and hosts.

An entry gets its name when it is complete: other processes see all of it, or nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import Metrics, Pricing, ResultsFile, Run, RunError, RunFolder, Trial, read_run
from foundation.documents import written_document
from foundation.files import FileError, read_bytes
from foundation.messages import shown
from foundation.writing import sync_folder, write_atomically
from search_spaces import SearchSpace, load_space

MAX_BYTES = 1 << 30  # of a journal
SIMULATED = "simulated"  # a file of an entry whose trials no machine has measured
_PRIVATE = ("save", "load", "validation", "initial_load_path", "loss_mask", "metrics")
_PATH = re.compile(r"[/\\]|^~")


def add(archive: Path, directory: Path, whole: bool = False) -> Path:
    """Put a run into an archive, in place of an earlier state of the same run; returns the entry.

    ``whole`` keeps the space and the journal as they are, with commands, paths and hosts.

    Raises FileError if no trial has succeeded, or a parameter's values are paths.
    """
    run, folder = read_run(directory), RunFolder(directory)
    space, trials = folder.frozen_space(), run.trials.items()
    kept = {n: replace(t, result=Metrics(t.result).all()) for n, t in trials if t.completed}
    if not any(trial.ok for trial in kept.values()):
        raise FileError(
            f"{shown(directory)}: no trial has succeeded, so no search could learn from it: "
            "archive it when one has"
        )
    files = {"space.yaml": b"" if whole else written_document(_anonymized(space)).encode()}
    if whole:
        paths = (folder.space_file, folder.journal_file)
        files = {path.name: read_bytes(path, MAX_BYTES) for path in paths}
    if run.launcher == "simulate":
        files[SIMULATED] = b""
    entry = archive / name_of(run, space)
    part, before = (archive / f".{uuid.uuid4().hex}" for _ in range(2))
    archive.mkdir(parents=True, exist_ok=True)
    try:
        part.mkdir()
        ResultsFile(RunFolder(part)).write(replace(run, trials=kept))
        for name, content in files.items():
            write_atomically(part / name, content, sync=True)
        sync_folder(part)
        _put(part, entry, before)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(before, ignore_errors=True)
    return entry


def _put(part: Path, entry: Path, before: Path) -> None:
    """Replace an entry by a new one, under a lock; the old one becomes ``before``."""
    with ExitStack() as held:
        with suppress(OSError):  # some file systems have no locks
            lock = os.open(entry.parent, os.O_RDONLY)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if entry.exists():
                entry.rename(before)
            part.rename(entry)
        finally:
            if before.exists() and not entry.exists():
                before.rename(entry)


def name_of(run: Run, space: SearchSpace) -> str:
    told = f"{run.fingerprint} {run.opened_t[:1]}".encode()
    return f"{space.name}-{hashlib.sha256(told).hexdigest()[:8]}"


def entries(archive: Path) -> Iterator[tuple[Path, SearchSpace | str]]:
    """Every entry with its space, or why it cannot be read; none without an archive."""
    for entry in sorted(archive.iterdir()) if archive.exists() else ():
        try:
            if entry.is_symlink():
                raise FileError(
                    "a symbolic link, which is not followed: `meshtune archive add` its run"
                )
            if not entry.name.startswith("."):
                yield entry, load_space(entry / "space.yaml", frozen=True)
        except FileError as error:
            yield entry, str(error)


def run_in(entry: Path) -> Run:
    """The trials of an entry; raises FileError if they cannot be read."""
    from workflows.replay.landscapes import recorded  # pandas

    [[landscape], _] = recorded(entry)
    run, told = Run(entry, space=landscape.space.name), landscape.answers.values()
    run.launcher = "simulate" if (entry / SIMULATED).exists() else ""
    for n, t in enumerate((trial for answers in told for trial in answers), start=1):
        run.trials[n] = Trial(n, t.config, 0.0, kind=t.kind, objective=t.objective, result=t.result)
    return run


def offer(pricing: Pricing, archive: Path, own: str = "", simulated: bool = False) -> Iterator[str]:
    """Offer a cost model the entries of its framework, GPU and network; yields a line on each.

    The entry ``own`` is left out: a resumed run has its trials already. Simulated entries are only
    for a simulated search.
    """
    for entry, space in entries(archive):
        if entry.name == own or ((entry / SIMULATED).exists() and not simulated):
            continue
        try:
            if isinstance(space, str):
                raise FileError(space)
            if kind(space) == kind(pricing.space):
                pricing.offer(entry.name, run_in(entry), Pricing(space))
                yield f"archive: {entry.name} is of the same framework, GPU and network"
        except (ValueError, RunError, OSError) as error:
            yield f"archive: {shown(entry)} is left out: {error}"


def kind(space: SearchSpace) -> tuple[str, ...]:
    """Framework, GPU and machine, which must be equal for runs to learn from each other."""
    cluster = space.cluster
    return (space.program.habits.name, *((cluster.gpu, cluster.name) if cluster else ()))


def _anonymized(space: SearchSpace) -> dict[str, Any]:
    """The content of a space without command lines, paths and prose."""
    content = space.content()
    for name, parameter in space.parameters.items():
        if any(isinstance(v, str) and _PATH.search(v) for v in parameter.values):
            raise FileError(
                f"{space.file}: values of {name} look like paths; --whole archives the run with "
                "all its paths, commands and hosts"
            )
    content.pop("description", None)
    trainer: dict[str, Any] = {"axes": list(space.trainer.axes)}
    if (builtin := content["trainer"].get("builtin")) is not None:
        kept = {key: value for key, value in builtin.items() if key not in _PRIVATE}
        trainer["builtin"] = kept | {"data": "python-source"}
    else:
        habits = space.program.habits
        stated = {n: getattr(habits, n) for n in sorted(habits.stated)}
        stated = {n: [*v] if isinstance(v, tuple) else v for n, v in stated.items()}
        trainer |= {"command": ["archived"], "framework": {"base": habits.name, **stated}}
    return content | {"trainer": trainer}
