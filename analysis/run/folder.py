"""The run folder: its layout, and every file in it but the journal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.pareto import front
from analysis.run.atomic import write_atomically
from analysis.run.fold import Run
from search_spaces import SearchSpace, load_space


class FingerprintError(Exception):
    """The run was made with another space; the message says what to do."""


class RunFolder:
    """``runs/NAME``; see DESIGN's layout."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def space_file(self) -> Path:
        return self.path / "space.yaml"

    @property
    def started(self) -> bool:
        """Whether there is a run in this folder."""
        return (self.path / "journal.jsonl").exists()

    def trial(self, number: int) -> Path:
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
                    "results of different spaces are not comparable. Continue it with "
                    f"`meshtune search {self.space_file}`, or choose another --run-dir"
                )
        (self.path / "trials").mkdir(parents=True, exist_ok=True)

    def create(self, space: SearchSpace) -> None:
        """Make the folder and freeze the space in it; the same one with another budget, anew.

        Raises:
            FingerprintError: if the folder belongs to a run of a different space.
        """
        self.prepare(space)
        write_atomically(self.space_file, space.frozen())

    def write_trial(self, number: int, files: Mapping[str, Any]) -> Path:
        """Write JSON files into the trial's folder, which is made if need be; returns it."""
        directory = self.trial(number)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(directory / name, json.dumps(content, indent=1) + "\n")
        return directory

    def write_results(self, run: Run) -> None:
        """Derive ``results.csv`` with DeepHyper's columns: ``p:``, objective, job, ``m:``.

        Several objectives are ``objective_0`` and so on, as measured, and ``pareto_efficient``.
        """
        ended = [t for t in sorted(run.trials.values(), key=lambda t: t.number) if t.ended]
        metrics = sorted({key for t in ended for key, v in t.result.items() if _scalar(v)})
        parameters = list(dict.fromkeys(name for t in ended for name in t.config))
        keys = [key for key, _ in run.goals]
        several = len(keys) > 1
        efficient = {t.number for t in front(run)}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            [f"p:{name}" for name in parameters]
            + ([f"objective_{i}" for i in range(len(keys))] if several else ["objective"])
            + ["job_id", "job_status"]
            + [f"m:{key}" for key in metrics]
            + (["pareto_efficient"] if several else [])
        )
        for t in ended:
            row = [t.config.get(name) for name in parameters]
            if several:
                row += [t.objectives.get(key) if t.ok else f"F_{t.kind}" for key in keys]
            else:
                row.append(t.objective if t.ok else f"F_{t.kind}")
            row += [t.number, "DONE" if t.ok else "FAILED"]
            row += [t.result.get(key) for key in metrics]
            writer.writerow(row + ([t.number in efficient] if several else []))
        write_atomically(self.path / "results.csv", text.getvalue())


def _scalar(value: Any) -> bool:
    return isinstance(value, (int, float, str))
