"""The run folder: where everything in it is, and the files that a driver writes for its trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.run.atomic import write_atomically
from search_spaces import SearchSpace, load_space

TRIAL_FILE = "trial.json"  # in a trial's folder: what was started
_NONE: Mapping[str, str] = {}


class FingerprintError(Exception):
    """The run was made with another space; the message says what to do."""


class RunFolder:
    """``runs/NAME``; see DESIGN's layout.

    Args:
        path: of the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def holding(cls, file: Path) -> RunFolder:
        """The run folder in which a report's file, such as ``best.yaml``, lies."""
        return cls(file.parent.parent)

    @property
    def space_file(self) -> Path:
        return self.path / "space.yaml"

    @property
    def journal_file(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def results_file(self) -> Path:
        return self.path / "results.csv"

    @property
    def report(self) -> Path:
        """The folder of the report."""
        return self.path / "report"

    @property
    def started(self) -> bool:
        """Whether there is a run in this folder."""
        return self.journal_file.exists()

    def trial(self, number: int) -> Path:
        """The folder of a trial."""
        return self.path / "trials" / f"{number:04d}"

    def prepare(self, space: SearchSpace) -> None:
        """Make the folder, or check that the space frozen in it is the same.

        Raises:
            FingerprintError: if the folder belongs to a run of a different space.
        """
        if self.space_file.exists():
            frozen = load_space(self.space_file)
            if frozen.fingerprint != space.fingerprint:
                raise FingerprintError(
                    f"{self.path} holds a run of another space ({frozen.name} "
                    f"{frozen.fingerprint[:12]}, not {space.name} {space.fingerprint[:12]}): "
                    "results of different spaces are not comparable. Continue it with its own, "
                    f"{self.space_file}, or choose another --run-dir"
                )
        for folder in (self.path, self.path / "trials"):  # in which trainer.env is written
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, space: SearchSpace) -> None:
        """Make the folder and freeze the space in it; the same one with another budget, anew.

        Raises:
            FingerprintError: if the folder belongs to a run of a different space.
        """
        self.prepare(space)
        write_atomically(self.space_file, space.frozen(), private=True)

    def write_trial(
        self, number: int, files: Mapping[str, Any], texts: Mapping[str, str] = _NONE
    ) -> Path:
        """Write files into the trial's folder, which is made if need be; returns it.

        Args:
            number: of the trial.
            files: what JSON files hold, by name.
            texts: of other files; a name may have folders in it.
        """
        directory = self.trial(number)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            text = json.dumps(content, indent=1) + "\n"
            write_atomically(directory / name, text, private=True)
        for name, text in texts.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / name, text, private=True)
        return directory
