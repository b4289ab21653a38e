"""Imports of meshtune's packages, even if other modules have their names.

``trainer``, ``analysis``, ``workflows`` and ``slurm`` are common names: a user's ``trainer.py`` on
PYTHONPATH or in the working directory comes before an installed package on ``sys.path``. The path
stays as it is; a finder ahead of it resolves these names.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("analysis", "foundation", "search_spaces", "slurm", "trainer", "workflows")
_REMEDY = "give meshtune an environment of its own: `pipx install meshtune`"


class HiddenPackageError(ImportError):
    """Another module has the name of a meshtune package; the message names its file."""


class _OwnPackages:
    """Finds the packages beside this one only."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in PACKAGES else None


def install() -> None:
    """Make these names resolve to meshtune's packages in this process.

    Raises HiddenPackageError if another module of such a name has been imported already.
    """
    for name in PACKAGES:
        module = sys.modules.get(name)
        if module is None:
            continue
        where = next(iter(getattr(module, "__path__", [])), None)
        where = where or getattr(module, "__file__", None) or "a module without a file"
        if Path(where).resolve() != ROOT / name:
            raise HiddenPackageError(
                f"{where} was imported as {name!r} and hides meshtune's package of that name: "
                f"import meshtune before it, rename it, or {_REMEDY}"
            )
    if _OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, _OwnPackages)


def check_installed() -> None:
    """Raise HiddenPackageError if another distribution has overwritten a meshtune package."""
    for record in ROOT.glob("meshtune-*.dist-info/RECORD"):
        with record.open(newline="") as file:
            digests = {row[0]: row[1] for row in csv.reader(file)}
        for name in PACKAGES:
            path = f"{name}/__init__.py"
            if path in digests and digests[path] != _digest(ROOT / path):
                raise HiddenPackageError(
                    f"{ROOT / path} is not meshtune's{_installed_by(name)}: {_REMEDY}"
                )


def _digest(path: Path) -> str:
    """A file's digest in the form of RECORD; "" if it cannot be read."""
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return ""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _installed_by(name: str) -> str:
    from importlib.metadata import packages_distributions  # slow: it reads all of them

    others = sorted({*packages_distributions().get(name, ())} - {"meshtune"})
    return f", but that of the distribution {', '.join(others)}" if others else " any more"
