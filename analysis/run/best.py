"""``best.yaml``: what ``meshtune train`` needs to train with the best configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analysis.run.atomic import write_atomically
from analysis.run.fold import Run
from analysis.run.folder import RunFolder
from analysis.units import counted
from slurm import module_argv
from trainer import ConfigError, TrainConfig

TRIAL_DIR = "{trial_dir}"  # in a command: the folder in which it is started


@dataclass(frozen=True)
class Best:
    """The content of a ``best.yaml``: a training configuration or a command."""

    path: Path
    num_nodes: int
    ranks_per_node: int
    train: dict[str, Any] | None
    command: tuple[str, ...]
    env: dict[str, str]


def write_best(run: Run, path: Path) -> str:
    """Write the best trial's configuration and command.

    Returns:
        Why they could not be written; empty if they were.
    """
    path.unlink(missing_ok=True)  # an earlier best must not outlive a reason not to write one
    if run.best is None:
        return "no trial has succeeded"
    folder = run.folder.trial(run.best.number)
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
        if _is_builtin(spec["argv"]):
            content["train"] = json.loads((folder / "config.json").read_text())
        else:
            # The trial's own folder, wherever the command has it, becomes that of the training.
            content["command"] = [a.replace(str(folder), TRIAL_DIR) for a in spec["argv"]]
        if len(run.goals) > 1:
            content["front"] = _front(run)
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


def _front(run: Run) -> list[dict[str, Any]]:
    """The Pareto front, in the units of the results."""
    return [
        {"trial": t.number, "objectives": dict(t.objectives), "parameters": dict(t.config)}
        for t in run.front()
    ]


def load_best(path: Path) -> Best:
    """Read ``best.yaml``; raises ConfigError that names the file and what is missing."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("meshtune_best") != 1:
        raise ConfigError(
            f"{path}: not a best.yaml (no `meshtune_best: 1`); `meshtune report RUN` writes one"
        )
    train, command = content.get("train"), content.get("command")
    try:
        if train is not None:
            TrainConfig.parse(train)
        elif not command:
            raise ConfigError("has neither `train` nor `command`")
        return Best(
            path=path,
            num_nodes=int(content["num_nodes"]),
            ranks_per_node=int(content["ranks_per_node"]),
            train=train,
            command=tuple(str(argument) for argument in command or ()),
            env={str(k): str(v) for k, v in (content.get("env") or {}).items()},
        )
    except KeyError as error:
        raise ConfigError(f"{path}: has no key {error}") from error
    except (ValueError, TypeError, AttributeError) as error:  # ConfigError is a ValueError
        raise ConfigError(f"{path}: {error}") from error


def parameters_of(path: Path) -> dict[str, Any] | None:
    """The configuration in a ``best.yaml``; None for any other file, or none.

    Raises:
        ConfigError: for a best.yaml without parameters, or away from its run.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None  # a shipped space's name, or a file that its own reader will complain of
    if not isinstance(content, dict) or "meshtune_best" not in content:
        return None
    if not isinstance(content.get("parameters"), dict):
        raise ConfigError(f"{path}: has no `parameters`; `meshtune report RUN` writes them")
    space_file = RunFolder.holding(path).space_file
    if not space_file.exists():
        raise ConfigError(
            f"{path}: there is no {space_file}: leave it in its run's report folder, where model "
            "and cluster are known"
        )
    return dict(content["parameters"])


def _is_builtin(argv: list[str]) -> bool:
    """Whether a trial ran the built-in trainer, now or as older versions started it."""
    now = list(module_argv("trainer")[1:])  # whatever the interpreter
    return argv[1 : 1 + len(now)] == now or argv[1:3] == ["-m", "trainer"]
