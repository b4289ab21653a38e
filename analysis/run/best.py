"""``best.yaml``: what ``meshtune train`` needs to train with the best configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from analysis.report import front
from analysis.run.atomic import write_atomically
from analysis.run.fold import Run
from analysis.units import counted


def write_best(run: Run, path: Path) -> str:
    """Write what ``meshtune train`` needs to train with the best configuration.

    Returns:
        Why it could not be written; empty if it was.
    """
    path.unlink(missing_ok=True)  # an earlier best must not outlive a reason not to write one
    if run.best is None:
        return "no trial has succeeded"
    folder = run.directory / "trials" / f"{run.best.number:04d}"
    try:
        spec = json.loads((folder / "trial.json").read_text())
        content: dict[str, Any] = {
            "meshtune_best": 1,
            "objective": {
                "maximize" if run.maximize else "minimize": run.objective_key,
                "value": run.best.objective,
            },
            "parameters": run.best.config,
            "num_nodes": spec["num_nodes"],
            "ranks_per_node": spec["ranks_per_node"],
        }
        if spec["argv"][1:3] == ["-m", "trainer"]:
            content["train"] = json.loads((folder / "config.json").read_text())
        else:
            # The trial's own folder, wherever the command has it, becomes that of the training.
            here = str(folder.absolute())
            content["command"] = [a.replace(here, "{trial_dir}") for a in spec["argv"]]
        if len(run.goals) > 1:
            content["front"] = front.as_yaml(run)
        if spec["env"]:
            content["env"] = spec["env"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the files of trial {run.best.number} in {folder} cannot be read: {error}"
    space = json.dumps(run.space)  # on one line, whatever it is
    head = (
        f"# The best of {counted(len(run.trials), 'trial')} of {space}: trial {run.best.number}.\n"
    )
    text = head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(path, text)
    return ""
