"""A search by the parts of another distribution, named on the command line and in the space."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from analysis.run.fold import Run, read_run
from workflows.cli.main import main

TRAIN = """
import sys
print('MESHTUNE_RESULT {"speed": %s0}' % sys.argv[1])
"""
PARTS = """
import sys

from search_spaces.trainers.trainer import Trainer
from slurm.local.launcher import LocalLauncher
from workflows.optimizer.policy import Policy, Proposal


class Kube(LocalLauncher):
    name = "kube"


def make_kube(options):
    return Kube(options.num_nodes)


class LargestFirst(Policy):
    def propose(self, run, max_nodes):
        new = self.problem.new(run, max_nodes, self.problem.rng(run))
        largest = max(new, key=lambda config: config["batch"], default=None)
        return largest and Proposal(self.problem.space.canonical(largest), "largest", "by its size")


class Script(Trainer):
    def command(self, trial):
        return (sys.executable, self.spec.options["script"], str(trial.facts["batch"]))
"""
POINTS = """
[meshtune.launchers]
kube = acme_parts:make_kube
[meshtune.policies]
largest = acme_parts:LargestFirst
[meshtune.trainers]
script = acme_parts:Script
"""
SPACE = """
version: 1
name: parts
cluster: {name: toy, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: TRAINER
parameters: {batch: [1, 2, 4]}
objective: {maximize: speed}
finalists: false
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to search in; a distribution with parts of every sort is installed beside it."""
    site = tmp_path / "site"
    info = site / "acme-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "acme_parts.py").write_text(PARTS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "acme_parts", raising=False)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(place: Path, *flags: str, trainer: str = "") -> Run:
    """The run of ``meshtune search``, to its end."""
    own = f"{{command: [{sys.executable}, {place / 'train.py'}, '{{batch}}']}}"
    (place / "space.yaml").write_text(SPACE.replace("TRAINER", trainer or own))
    assert main(["search", "space.yaml", "--run-dir", "run", "--no-report", *flags]) == 0
    return read_run(place / "run")


def test_a_search_runs_its_trials_by_an_installed_launcher(place: Path) -> None:
    run = search(place, "--launcher", "kube")
    assert '"launcher": "kube"' in (place / "run" / "journal.jsonl").read_text()
    assert {trial.objective for trial in run.trials.values()} == {10, 20, 40}


def test_a_search_runs_what_an_installed_policy_proposes(place: Path) -> None:
    run = search(place, "--launcher", "local", "--policy", "largest")
    assert [trial.config["batch"] for trial in run.trials.values()] == [4, 2, 1]
    assert run.best and run.best.objective == 40


def test_a_search_runs_the_command_of_an_installed_trainer(place: Path) -> None:
    trainer = f"{{use: script, options: {{script: {place / 'train.py'}}}}}"
    run = search(place, "--launcher", "local", trainer=trainer)
    assert {trial.objective for trial in run.trials.values()} == {10, 20, 40}
