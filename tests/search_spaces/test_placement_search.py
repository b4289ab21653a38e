"""The shipped space of placements, searched with the real trainer on CPU ranks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import yaml

from analysis.run.fold import read_run
from search_spaces.shipped import SHIPPED
from trainer.data.prepare import prepare_data
from trainer.plan.config import TrainConfig

TRIALS = 2
SMALL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 264, "seq_length": 16}


def test_placements_are_searched_on_the_ranks_of_one_machine(tmp_path: Path) -> None:
    """The space itself; smaller are only the model, the text and the number of steps."""
    prepare_data([Path(__file__)], tmp_path / "text")
    space = yaml.safe_load((SHIPPED / "placements_slow_links.yaml").read_text())
    space["model"] = SMALL
    space["trainer"]["builtin"]["data"] = str(tmp_path / "text")
    space["trial"] |= {"warmup_steps": 1, "measured_steps": 2}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    command = [sys.executable, "-m", "workflows.cli.main", "search", str(tmp_path / "space.yaml")]
    command += ["--run-dir", str(tmp_path / "run"), "--launcher", "local", "--trials", str(TRIALS)]
    command += ["--no-report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr

    trials = read_run(tmp_path / "run").trials
    assert [trial.kind for trial in trials.values()] == ["ok"] * TRIALS
    placements = set()
    for number in trials:
        folder = tmp_path / "run" / "trials" / f"{number:04d}"
        result = json.loads((folder / "result.json").read_text())
        assert result["world_size"] == 8 and all(map(math.isfinite, result["loss"]))
        config = TrainConfig.parse(json.loads((folder / "config.json").read_text()))
        assert (config.ranks_per_node, config.ranks_per_pair) == (4, 2)
        placements.add(config.place(8, local_world_size=4))
    assert len(placements) > 1
