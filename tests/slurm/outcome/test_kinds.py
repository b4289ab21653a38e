"""The table of kinds: what is read from it, and that a new kind is one row of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slurm
from slurm.outcome.kinds import BLAMELESS, STATUSES, Kind

NEW_ROW = """
    NO_LICENSE = (
        "no_license",
        Consequences(
            "had no license", "machine", status="no_license",
            text=LogText(re.compile("License checkout failed"), Before.RESULT),
        ),
    )
"""


def test_what_follows_from_each_kind_is_as_designed() -> None:
    failures = {kind for kind in Kind if kind.row.colour == "red"}
    assert {"oom", "host_oom", "invalid", "diverged", "timeout", "crash"} == failures
    assert {"node_failure", "launch_failure", "disk_full", "preempted"} == BLAMELESS
    assert {kind for kind in Kind if kind.retried} == {*BLAMELESS, "cancelled"}
    assert {kind for kind in Kind if kind.observed} == {*failures, "ok"}
    assert set(STATUSES) == {"ok", "oom", "invalid", "diverged", "error"}


def test_a_kind_is_found_by_its_value_and_is_text() -> None:
    assert Kind("oom") is Kind.OOM
    assert (str(Kind.OOM), f"F_{Kind.OOM}") == ("oom", "F_oom")
    with pytest.raises(ValueError, match="meltdown"):
        Kind("meltdown")


def test_a_new_kind_is_one_row(tmp_path: Path) -> None:
    """A copy of the package with that row more: everything that speaks of kinds knows it."""
    package = tmp_path / "slurm"
    shutil.copytree(Path(slurm.__file__).parent, package)
    table = package / "outcome" / "kinds.py"
    head, property_, tail = table.read_text().partition("\n    @property\n    def observed(")
    table.write_text(head + NEW_ROW + property_ + tail)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    repository = Path(slurm.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


PROGRAM = """
from pathlib import Path

import pandas as pd

from analysis.report import page
from analysis.report.tables import trial_row
from analysis.report.outcomes import failures
from analysis.run.fold import Run
from analysis.run.trial import COMPLETED, Attempt, Trial
from slurm.outcome.classify import classify
from slurm.outcome.evidence import Evidence
from slurm.outcome.kinds import BLAMELESS, Kind
from slurm.outcome.result import find_result
from slurm.outcome.watch import Termination

# Its words in a log decide, and so does the trainer's own status.
text = Evidence(Termination.EXITED, 1.0, exit_code=1, stderr="OSError: License checkout failed")
outcome = classify(text)
assert (outcome.kind, outcome.message) == ("no_license", text.stderr)
Path("result.json").write_text('{"status": "no_license", "where": "checkpoint", "message": "m"}')
result, problem = find_result(Path(), "")
assert not problem
outcome = classify(Evidence(Termination.EXITED, 1.0, exit_code=1, result=result))
assert (outcome.kind, outcome.message) == ("no_license", "checkpoint: m")

# The optimizer does not learn of it, and the trial runs again.
kind = Kind("no_license")
assert kind.retried and kind in BLAMELESS and kind not in COMPLETED

# The report has its words and its colour.
run = Run(Path("runs/x"))
attempt = Attempt(1, "x-1-1", ("n1",), 0.0, ended_t=60.0, kind="no_license", message="m")
run.trials[1] = Trial(1, {}, 0.0, attempts=[attempt], kind="no_license", message="m", ended_t=60.0)
(shown,) = failures(run)
assert (shown["words"], shown["completed"], shown["colour"]) == ("had no license", False, "gray")
colour, css = trial_row(run, run.trials[1])["colour"], Path(page.__file__).parent / "templates"
assert colour == "gray" and f".{colour} {{" in (css / "page.css").read_text()
"""
