"""Scripts that know nothing of models and clusters: a space of eight lines is enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.run.best import Best
from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from search_spaces import check, load_space, notes
from search_spaces.hints import misplaced
from workflows.cli.main import main

SCRIPT = """\
import json, math, os, sys
base = float(open("base.txt").read())
print("MESHTUNE_RESULT", json.dumps({"val_loss": base + abs(math.log10(float(sys.argv[2])) + 3)}))
open(os.environ["MESHTUNE_TRIAL_DIR"] + "/checkpoint", "w").close()
"""
EIGHT_LINES = """\
version: 1
name: mine
trainer:
  command: [python, train.py, --lr, "{lr}"]
  workdir: ../scripts
parameters: {lr: {float: [1e-5, 1e-2], log: true}}
objective: {minimize: val_loss}
budget: {trials: 4}
finalists: false
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A space, and beside its folder the one with the script and what that reads."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "base.txt").write_text("3.0")
    (tmp_path / "spaces").mkdir()
    file = tmp_path / "spaces" / "mine.yaml"
    file.write_text(EIGHT_LINES)
    return file


def test_a_script_is_searched_without_model_cluster_or_nodes(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    assert main(["search", str(space), "--launcher", "local", "--run-dir", str(out)]) == 0
    run = read_run(out)
    first_four = [run.trials[number] for number in range(1, 5)]
    assert all(t.kind == "ok" and t.objective and t.objective >= 3.0 for t in first_four)
    assert len({t.config["lr"] for t in first_four}) == 4
    folder = RunFolder(out).trial(1)
    assert (folder / "checkpoint").is_file()  # in the trial's folder, wherever it was started
    assert sorted(p.name for p in (tmp_path / "scripts").iterdir()) == ["base.txt", "train.py"]
    assert json.loads((folder / "trial.json").read_text())["workdir"] == str(tmp_path / "scripts")
    best = Best.read(out / "report" / "best.yaml")
    assert best.workdir == tmp_path / "scripts" and best.ranks_per_node == 1
    trained = ["train", str(out / "report" / "best.yaml"), "--launcher", "local"]
    assert main([*trained, "--out", str(tmp_path / "trained")]) == 0


def test_a_run_whose_folder_of_scripts_is_gone_is_shown_and_not_resumed(
    space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = RunFolder(tmp_path / "run")
    out.path.mkdir()
    out.space_file.write_text(load_space(space).frozen())
    frozen = load_space(out.space_file)
    assert frozen.fingerprint == load_space(space).fingerprint
    (tmp_path / "scripts").rename(tmp_path / "elsewhere")
    assert out.frozen_space().workdir == tmp_path / "scripts"
    assert main(["check", str(space)]) == 2
    said = capsys.readouterr().err
    assert "mine.yaml:5:12: key 'trainer.workdir': found '../scripts'" in said
    assert f"there is no {tmp_path / 'scripts'}" in said


def test_a_script_is_looked_for_where_trials_start(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"lr": 1e-3}
    monkeypatch.chdir(space.parent.parent / "scripts")
    assert misplaced(load_space(space)) == []
    (space.parent / "train.py").write_text("")
    assert load_space(space).command(config, "/t")[1] == "train.py"  # that of the folder
    (space.parent / "train.py").unlink()
    here = space.parent / "here.yaml"
    here.write_text(EIGHT_LINES.replace("../scripts", "..").replace("mine", "here"))
    (note,) = notes(load_space(here))
    assert f"trials start in {space.parent.parent} and will not find train.py" in note
    here.write_text(EIGHT_LINES.replace("  workdir: ../scripts\n", ""))
    (note,) = notes(load_space(here))
    assert "trials start in folders of their own and will not find train.py" in note


def test_ranks_per_node_stand_in_for_a_cluster_or_are_fewer_than_its_gpus(space: Path) -> None:
    text = EIGHT_LINES + "trial: {ranks_per_node: 4}\n"
    space.write_text(text.replace("parameters: {", "parameters: {num_nodes: [1, 2], "))
    loaded = load_space(space)
    assert loaded.facts({"num_nodes": 2, "lr": 1e-3})["world_size"] == 8
    assert (loaded.ranks_per_node, loaded.widths) == (4, (1, 2))
    assert "the space has no cluster" not in check(loaded).text()
    space.write_text(text.replace("name: mine", "name: mine\ncluster: dgx_h100"))
    assert load_space(space).ranks_per_node == 4  # a trainer may start processes of its own
