"""Whose a run's processes are: a folder keeps its identity when it is moved, a copy gets its own.

The names of a run's steps and processes carry its identity, and a driver ends those alone that
carry it. So a copy of a running run can be resumed beside it, and a folder that was renamed after
its driver had died still ends what that driver left.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Identity:
    """What the journal says of the folder in which it was written."""

    id: str
    path: str
    inode: int  # of the folder: it stays with a rename, and no copy has it

    @classmethod
    def of(cls, folder: Path, before: Identity | None) -> Identity:
        """The identity of a run's folder now.

        Args:
            folder: it exists.
            before: what its journal says; None if it says nothing.
        """
        here = folder.resolve()
        inode = here.stat().st_ino
        same = before is not None and before.inode == inode and not before.is_elsewhere(here)
        return cls(before.id if before and same else secrets.token_hex(4), str(here), inode)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Identity | None:
        """What :meth:`to_record` has made; None of nothing."""
        return cls(str(record["id"]), str(record["path"]), int(record["inode"])) if record else None

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    def is_elsewhere(self, here: Path) -> bool:
        """Whether the folder still lies where it lay, and that is not here.

        Two file systems may use one number, and a snapshot has the numbers of its original.
        """
        there = Path(self.path)
        try:
            return there.stat().st_ino == self.inode and not there.samefile(here)
        except OSError:
            return False
