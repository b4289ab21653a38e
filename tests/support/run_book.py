"""Run folders written event by event, as a driver would, with a clock that the test turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.run.events import Ended, Event, Opened, Proposed, Started
from analysis.run.fold import Run, read_run
from analysis.run.journal import Journal
from analysis.run.lines import FIRST, sealed
from foundation.python import module_argv

T0 = 1_700_000_000.0


class RunBook:
    """A run folder and its journal.

    Args:
        directory: of the run; it is made.
        objectives: ``{maximize|minimize: key}`` of each.
    """

    def __init__(self, directory: Path, *objectives: Mapping[str, str]) -> None:
        self.directory, self.t = directory, T0
        self.objectives: Sequence[Mapping[str, str]] = objectives or ({"maximize": "speed"},)
        directory.mkdir(parents=True)
        self._journal = Journal(directory, clock=lambda: self.t, sync=False)
        self.open()

    def write(self, event: Event) -> None:
        self._journal.write(event)

    def close(self) -> None:
        """As a driver that was killed leaves its run."""
        self._journal.close()

    def read(self) -> Run:
        return read_run(self.directory)

    def open(self) -> None:
        several = list(self.objectives) if len(self.objectives) > 1 else []
        self.write(
            Opened(
                space="table4", fingerprint="f00d", seed=7, launcher="simulate",
                nodes=[f"n{i:03d}" for i in range(16)], objective=self.objectives[0],
                objectives=several or (),
            )
        )  # fmt: skip

    def propose(
        self,
        trial: int,
        config: Mapping[str, Any],
        why: str = "",
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.write(
            Proposed(trial=trial, config=config, by="forest", why=why, expected=expected or {})
        )

    def start(
        self, trial: int, attempt: int = 1, nodes: Iterable[str] = ("n000",), repeat: bool = False
    ) -> None:
        name = f"t{trial:04d}-{attempt}"
        self.write(
            Started(trial=trial, attempt=attempt, name=name, nodes=list(nodes), repeat=repeat)
        )

    def end(
        self,
        trial: int,
        kind: str,
        objective: float | None = None,
        *,
        attempt: int = 1,
        message: str = "",
        final: bool = True,
        **more: Any,
    ) -> None:
        """An end; ``more`` are further fields of it."""
        self.write(
            Ended(
                trial=trial, attempt=attempt, kind=kind, objective=objective, message=message,
                final=final, **more,
            )
        )  # fmt: skip

    def run_one(
        self,
        trial: int,
        config: Mapping[str, Any],
        kind: str,
        reached: float | Sequence[float] | None,
        message: str = "",
        stderr_tail: str = "",
    ) -> None:
        """One trial from proposal to end, with the files that a driver leaves in its folder.

        Args:
            trial: its number.
            config: its configuration.
            kind: how it ended.
            reached: the objective, or each of several; None if it failed.
            message: of its end.
            stderr_tail: of its standard error.
        """
        values = () if reached is None else (reached,) if isinstance(reached, float) else reached
        keys = [next(iter(objective.values())) for objective in self.objectives]
        found = dict(zip(keys, values, strict=False))
        self.propose(trial, config)
        self.t += 2
        self.start(trial)
        self.t += 20 if kind == "oom" else 60 + trial % 7
        result = {"status": "ok", **found, "peak_memory_bytes": 60 << 30} if found else None
        self.end(
            trial, kind, next(iter(values), None), result=result, message=message,
            objectives=found if len(keys) > 1 else {}, stderr_tail=stderr_tail,
        )  # fmt: skip
        self.leave_files(trial, config, stderr_tail)

    def leave_files(self, trial: int, config: Mapping[str, Any], stderr_tail: str = "") -> None:
        """What a driver and the built-in trainer leave in a trial's folder."""
        folder = self._journal.run.folder.trial(trial)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        (folder / "stderr.log").write_text(stderr_tail)
        (folder / "config.json").write_text(json.dumps(train_config(config)))
        spec = {
            "name": f"t{trial:04d}",
            "argv": ["/usr/bin/python", *module_argv("trainer", str(folder / "config.json"))[1:]],
            "num_nodes": config.get("num_nodes", 1),
            "ranks_per_node": 8,
            "env": {},
        }
        (folder / "trial.json").write_text(json.dumps(spec))


def resealed(journal: Path, was: str, now: str) -> None:
    """Replace a text in a journal, whose lines get the checksums that they then have."""
    lines, last = [], FIRST
    for line in journal.read_text().replace(was, now).splitlines():
        record = {k: v for k, v in json.loads(line).items() if k not in ("after", "crc")}
        told, last = sealed(record, last)
        lines.append(told)
    journal.write_bytes(b"".join(lines))


class RepeatBook(RunBook):
    """Trials that are measured again and again."""

    def __init__(self, folder: Path, minimize: bool = False) -> None:
        super().__init__(folder, {"minimize" if minimize else "maximize": "speed"})
        self.attempts: dict[int, int] = {}

    def write(self, event: Event) -> None:
        self.t += 10
        super().write(event)

    def measure(self, trial: int, speed: float | None, kind: str = "ok", **more: Any) -> None:
        repeat = trial in self.attempts
        if not repeat:
            self.propose(trial, {"tp": trial})
        self.attempts[trial] = attempt = self.attempts.get(trial, 0) + 1
        self.start(trial, attempt, ["n", "m"], repeat)
        result = {"speed": speed, "mark": attempt} if speed else {}
        message = f"attempt {attempt}"
        self.end(
            trial, kind, speed, attempt=attempt, result=result, message=message,
            final=not repeat, **more,
        )  # fmt: skip

    def run(self, speeds: Mapping[int, Sequence[float]]) -> Run:
        for trial, all_of_it in speeds.items():
            for speed in all_of_it:
                self.measure(trial, speed)
        return self.read()


def train_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the built-in trainer is told for a configuration, of the 175B model of Dash et al."""
    model = {
        "num_layers": 96, "hidden_size": 12288, "num_heads": 96, "vocab_size": 51200,
        "seq_length": 2048,
    }  # fmt: skip
    known = {"tp", "pp", "mbs", "gas", "zero_stage"} & config.keys()
    return {"model": model, "data": "/data/tokens", **{name: config[name] for name in known}}
