"""``best.yaml``: what ``meshtune train`` needs to train with the best configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from analysis.run.fold import Run
from analysis.run.folder import TRIAL_FILE, RunFolder
from analysis.units import counted
from foundation.documents import Document, read_document, written_document
from foundation.files import parse_json, read_text
from foundation.python import module_argv
from foundation.records import validate
from foundation.writing import write_atomically
from search_spaces import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    ResultPatterns,
    Scalar,
    VariableName,
    wrong_file_name,
)
from slurm.logs.patterns import LogFormat
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

MAX_BYTES = 10_000_000
TRIAL_DIR = "{trial_dir}"  # in a command: the folder of its results, files and logs


@dataclass(frozen=True)
class Best:
    """The content of a ``best.yaml``: a training configuration or a command."""

    path: Path
    num_nodes: int
    ranks_per_node: int
    train: dict[str, Any] | None
    command: tuple[str, ...]
    env: dict[str, str]
    parameters: dict[str, Scalar]
    log: LogFormat
    files: dict[str, str]
    workdir: Path | None


class _File(BaseModel):
    """What :func:`write_best` writes. Strict: an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    meshtune_best: int
    objective: dict[str, Any] = {}
    parameters: dict[str, Scalar] = {}
    num_nodes: int = Field(ge=1, le=MAX_NODES)
    ranks_per_node: int = Field(ge=1, le=MAX_GPUS_PER_NODE)
    train: TrainConfig | None = None
    command: list[str] | None = Field(default=None, min_length=1)
    front: list[Any] = []
    env: dict[VariableName, str] = {}
    log: ResultPatterns | None = None
    files: dict[str, str] = {}
    workdir: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> _File:
        if (self.train is None) == (self.command is None):
            raise ValueError("accepted exactly one of: train, command")
        for name in self.files:
            if problem := wrong_file_name(name):
                raise ValueError(f"files: found {name!r}, {problem}")
        return self


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
        spec = _json(folder / TRIAL_FILE)
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
            content["train"] = _json(folder / "config.json")
        else:
            # The trial's own folder, wherever the command has it, becomes that of the training.
            content["command"] = [a.replace(str(folder), TRIAL_DIR) for a in spec["argv"]]
        if len(run.goals) > 1:
            content["front"] = _front(run)
        if spec["env"]:
            content["env"] = spec["env"]
        if "log" in spec:
            content["log"] = spec["log"]
        if "workdir" in spec:
            content["workdir"] = spec["workdir"]
        if "files" in spec:
            content["files"] = {
                name: text.replace(str(folder), TRIAL_DIR) for name, text in spec["files"].items()
            }
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the files of trial {run.best.number} in {folder} cannot be read: {error}"
    space = json.dumps(run.space)  # on one line, whatever it is
    head = (
        f"# The best of {counted(len(run.trials), 'trial')} of {space}: trial {run.best.number}.\n"
    )
    text = head + written_document(content)
    write_atomically(path, text, private=True)
    return ""


def _front(run: Run) -> list[dict[str, Any]]:
    """The Pareto front, in the units of the results."""
    return [
        {"trial": t.number, "objectives": dict(t.objectives), "parameters": dict(t.config)}
        for t in run.front()
    ]


def load_best(path: Path) -> Best:
    """Read ``best.yaml``; raises ConfigError with file, line and key of what is wrong."""
    document = read_document(path, ConfigError)
    if not _is_best(document):
        raise ConfigError(
            f"{document.name}: not a best.yaml (no `meshtune_best: 1`); `meshtune report RUN` "
            "writes one"
        )
    file = validate(_File, document)
    return Best(
        path=path,
        num_nodes=file.num_nodes,
        ranks_per_node=file.ranks_per_node,
        train=None if file.train is None else file.train.model_dump(exclude_unset=True),
        command=tuple(file.command or ()),
        env=file.env,
        parameters=dict(file.parameters),
        log=file.log.log_format() if file.log else LogFormat(),
        files=dict(file.files),
        workdir=None if file.workdir is None else Path(file.workdir),
    )


def parameters_of(path: Path) -> dict[str, Any] | None:
    """The configuration in a ``best.yaml``; None for any other file, or none.

    Raises:
        ConfigError: for a best.yaml without parameters, or away from its run.
    """
    try:
        document = read_document(path, ConfigError)
    except ConfigError:
        return None  # a shipped space's name, or a file that its own reader will complain of
    if not _is_best(document):
        return None
    parameters = validate(_File, document).parameters
    if not parameters:
        raise document.error((), "key 'parameters' is missing; `meshtune report RUN` writes them")
    space_file = RunFolder.holding(path).space_file
    if not space_file.exists():
        raise ConfigError(
            f"{document.name}: there is no {space_file}: leave it in its run's report folder, "
            "where model and cluster are known"
        )
    return dict(parameters)


def _is_best(document: Document) -> bool:
    root = document.root.plain()
    return isinstance(root, dict) and root.get("meshtune_best") == 1


def _json(path: Path) -> Any:
    """What the driver wrote; of its own files it reads no more than it would write."""
    return parse_json(read_text(path, MAX_BYTES), str(path))


def _is_builtin(argv: list[str]) -> bool:
    """Whether a trial ran the built-in trainer, now or as older versions started it."""
    now = list(module_argv("trainer")[1:])  # whatever the interpreter
    return argv[1 : 1 + len(now)] == now or argv[1:3] == ["-m", "trainer"]
