"""A run folder's identity: it stays when the folder is moved, and a copy gets its own.

The names of a run's steps and processes carry it, and a driver ends only those that do. So a copy
of a running run can be resumed beside it, and a renamed folder still ends what its driver left.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Identity:
    """The folder in which a journal was written."""

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
        """The identity that :meth:`to_record` wrote; None for an empty record."""
        return cls(str(record["id"]), str(record["path"]), int(record["inode"])) if record else None

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    def is_elsewhere(self, here: Path) -> bool:
        """Whether the folder still exists at its path, and that is not ``here``.

        The inode alone does not tell: two file systems may share a number, and so may a snapshot.
        """
        there = Path(self.path)
        try:
            return there.stat().st_ino == self.inode and not there.samefile(here)
        except OSError:
            return False
