"""The run folder: paths in it, its frozen space, files of its trials, and its identity."""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

from analysis.run.lines import Lines, RunError
from analysis.run.lock import Worker, driver_of, lock
from foundation.files import FileError, read_text
from foundation.messages import shown
from foundation.writing import write_atomically
from search_spaces import SearchSpace, SpaceError, load_space

TRIAL_FILE = "trial.json"  # in a trial's folder: what was started
MAX_SPACE_BYTES = 10_000_000
_SEAL = "# Frozen with its run; edit a copy. SHA-256 of what follows: "
_NO_FOLDER = {
    *(errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG),
}


class FingerprintError(RunError):
    """The run has another space; the message says what to do."""


class RunFolder:
    """``runs/NAME``; the folder need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.space_file = self.path / "space.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.results_file = self.path / "results.csv"
        self.report = self.path / "report"
        # of an elastic training: the searched configuration whose batch and number formats stay
        self.base_file = self.path / "base.json"

    @classmethod
    def holding(cls, file: Path) -> RunFolder:
        """The run folder of a report's file, such as ``best.yaml``."""
        return cls(file.parent.parent)

    @property
    def started(self) -> bool:
        return self.journal_file.exists()

    @property
    def probes(self) -> RunFolder:
        """The run of its probes; see ``workflows.search.probing``."""
        return RunFolder(self.path / "probes")

    def trial(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04d}"

    def lock(self) -> IO[bytes]:
        """Hold the folder for this process alone; see :func:`analysis.run.lock.lock`."""
        return lock(self.path)

    def join(self) -> Worker:
        """Share the folder with other processes; see :mod:`analysis.run.lock`."""
        return Worker(self.path)

    @property
    def driver(self) -> str | None:
        """``HOST pid PID`` of the driver that runs it now; raises RunError if that is unknown."""
        return driver_of(self.path)

    def frozen_space(self) -> SearchSpace:
        """The run's space; raises FingerprintError if it was changed since it was frozen."""
        try:
            text = read_text(self.space_file, MAX_SPACE_BYTES)
            space = load_space(self.space_file, frozen=True)
        except FileError as error:
            raise FingerprintError(f"{error}; {self._freeze_anew()}") from None
        seal, _, rest = text.partition("\n")
        if seal.startswith(_SEAL) and seal != _seal_of(rest):
            raise FingerprintError(
                f"{shown(self.space_file)}: edited or damaged since it was frozen with its run; "
                f"{self._freeze_anew()}"
            )
        return space

    def readable_space(self) -> SearchSpace | None:
        """The run's space, changed or not; None if it cannot be read."""
        try:
            return load_space(self.space_file, frozen=True)
        except SpaceError:
            return None

    def prepare(self, space: SearchSpace) -> None:
        """Make the folder, or check that the space frozen in it is the same.

        Raises FingerprintError if it has a run of another space, RunError if it cannot be made.
        """
        if self.space_file.exists():
            try:
                frozen = self.frozen_space()
            except FingerprintError:
                # The given space replaces a damaged copy if the run was made with it.
                if self.started and self._fingerprint() != space.fingerprint:
                    raise
                frozen = space
            if frozen.fingerprint != space.fingerprint:
                changes = "\n  ".join(space.changes(frozen))
                raise FingerprintError(
                    f"{shown(space.file)}: {self.path} holds a run of another space:\n  {changes}\n"
                    "results of different spaces are not comparable. Continue it with its own, "
                    f"{self.space_file}, or choose another --run-dir"
                )
        try:
            for folder in (self.path, self.path / "trials"):  # in which trainer.env is written
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            raise RunError(
                f"{shown(self.path)}: cannot be a run folder: {error.strerror}; choose another "
                "--run-dir"
            ) from None

    def create(self, space: SearchSpace) -> None:
        """``prepare`` the folder, and freeze the space, whose budget may have changed."""
        self.prepare(space)
        text = space.frozen()
        write_atomically(self.space_file, f"{_seal_of(text)}\n{text}", private=True, sync=True)

    def _fingerprint(self) -> str:
        """The space's fingerprint in the journal; empty if there is none."""
        opened = (r for r in Lines(self.journal_file) if r.get("event") == "opened")
        return str(next(opened, {}).get("fingerprint", ""))

    def _freeze_anew(self) -> str:
        return (
            "give the space file that the run was made with, and it is frozen anew: "
            f"`meshtune search SPACE --run-dir {quote(shown(self.path))}`"
        )

    def write_trial(self, number: int, files: Mapping[str, Any], texts: Mapping[str, str]) -> Path:
        """Write JSON files and texts by name, folders included, into the trial's folder."""
        written = {name: json.dumps(content, indent=1) + "\n" for name, content in files.items()}
        for name, text in (written | dict(texts)).items():
            file = self.trial(number) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text, private=True)
        return self.trial(number)


def _seal_of(text: str) -> str:
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True)
class Identity:
    """A run folder's identity: it stays when the folder is moved, and a copy gets its own.

    The names of a run's steps and processes carry it, and a driver ends only those that do. So a
    copy of a running run can be resumed beside it, and a renamed folder still ends what its driver
    left.
    """

    id: str
    path: str
    inode: int  # of the folder: a rename keeps it, a copy has another

    @classmethod
    def of(cls, folder: Path, before: Identity | None) -> Identity:
        """The identity of an existing folder, given the one ``before`` in its journal, if any."""
        here = folder.resolve()
        inode = here.stat().st_ino
        same = before is not None and before.inode == inode and not before.is_elsewhere(here)
        return cls(before.id if before and same else secrets.token_hex(4), str(here), inode)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Identity | None:
        """The identity whose fields a journal's line holds; None for an empty record."""
        return cls(str(record["id"]), str(record["path"]), int(record["inode"])) if record else None

    def is_elsewhere(self, here: Path) -> bool:
        """Whether the folder still exists at its path, and that is not ``here``.

        The inode does not suffice: two file systems, or a snapshot, may have the same number.
        """
        there = Path(self.path)
        try:
            return there.stat().st_ino == self.inode and not there.samefile(here)
        except OSError:
            return False
