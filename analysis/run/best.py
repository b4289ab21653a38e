"""``best.yaml``: the best configuration, as ``meshtune train`` takes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from analysis.run.fold import Run
from analysis.run.folder import TRIAL_FILE, RunFolder
from foundation.container import Container, ContainerOrImage
from foundation.documents import Document, read_document, written_document
from foundation.files import read_json
from foundation.python import module_argv
from foundation.quantities import counted
from foundation.records import Record, validate
from foundation.values import Scalar, VariableName
from foundation.writing import write_atomically
from search_spaces import ResultPatterns, log_format, wrong_file_name
from slurm.logs.patterns import LogFormat
from trainer.plan.config import TrainConfig
from trainer.plan.limits import MAX_GPUS_PER_NODE, MAX_NODES, ConfigError

MAX_BYTES = 10_000_000
_CARRIED = ("env", "log", "workdir", "container")  # from trial.json


@dataclass(frozen=True)
class Best:
    """A ``best.yaml``: a configuration of the built-in trainer, or a command."""

    TRIAL_DIR: ClassVar[str] = "{trial_dir}"  # in a command: the folder of its results and logs

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
    container: Container | None

    @classmethod
    def read(cls, path: Path) -> Best:
        """Read ``best.yaml``; raises ConfigError with file, line and key of what is wrong."""
        document = read_document(path, ConfigError)
        if not _is_best(document):
            raise ConfigError(
                f"{document.name}: not a best.yaml (no `meshtune_best: 1`); `meshtune report RUN` "
                "writes one"
            )
        file = validate(_File, document)
        return cls(
            path=path,
            num_nodes=file.num_nodes,
            ranks_per_node=file.ranks_per_node,
            train=None if file.train is None else file.train.model_dump(exclude_unset=True),
            command=tuple(file.command or ()),
            env=file.env,
            parameters=dict(file.parameters),
            log=log_format(file.log),
            files=dict(file.files),
            workdir=None if file.workdir is None else Path(file.workdir),
            container=file.container,
        )

    @staticmethod
    def parameters_in(path: Path) -> dict[str, Any] | None:
        """The configuration in a ``best.yaml``; None if there is no such file, or another one.

        Raises ConfigError for a best.yaml without parameters, or outside its run's folder.
        """
        try:
            document = read_document(path, ConfigError)
        except ConfigError:
            return None  # a shipped space's name, or a file that its own reader will refuse
        if not _is_best(document):
            return None
        parameters = validate(_File, document).parameters
        if not parameters:
            raise document.error(
                (), "key 'parameters' is missing; `meshtune report RUN` writes them"
            )
        space_file = RunFolder.holding(path).space_file
        if not space_file.exists():
            raise ConfigError(
                f"{document.name}: there is no {space_file}: leave it in its run's report folder, "
                "where model and cluster are known"
            )
        return dict(parameters)


class _File(Record):
    meshtune_best: int
    objective: dict[str, Any] = Field(default_factory=dict)
    subject_to: list[str] = Field(default_factory=list)
    measured: dict[str, float] = Field(default_factory=dict)
    parameters: dict[str, Scalar] = Field(default_factory=dict)
    num_nodes: int = Field(ge=1, le=MAX_NODES)
    ranks_per_node: int = Field(ge=1, le=MAX_GPUS_PER_NODE)
    train: TrainConfig | None = None
    command: list[str] | None = Field(default=None, min_length=1)
    front: list[Any] = Field(default_factory=list)
    env: dict[VariableName, str] = Field(default_factory=dict)
    log: ResultPatterns | None = None
    files: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = Field(default=None, min_length=1)
    container: ContainerOrImage | None = None

    @model_validator(mode="after")
    def _one(self) -> _File:
        if (self.train is None) == (self.command is None):
            raise ValueError("accepted exactly one of: train, command")
        for name in self.files:
            if problem := wrong_file_name(name):
                raise ValueError(f"files: found {name!r}, {problem}")
        return self


def write_best(run: Run, path: Path) -> str:
    """Write the best trial's configuration and command; return why not, or ""."""
    path.unlink(missing_ok=True)  # an outdated best must not remain if none can be written
    if run.best is None:
        return run.no_best
    folder = run.folder.trial(run.best.number)
    try:
        spec = read_json(folder / TRIAL_FILE, MAX_BYTES)
        content: dict[str, Any] = {
            "meshtune_best": 1,
            "objective": {
                "maximize" if run.maximize else "minimize": run.objective_key,
                "value": run.best.objective,
            },
            **({"subject_to": [b.text for b in run.subject_to]} if run.subject_to else {}),
            **({"measured": dict(run.best.bounded)} if run.best.bounded else {}),
            "parameters": run.best.config,
            "num_nodes": spec["num_nodes"],
            "ranks_per_node": spec["ranks_per_node"],
        }
        if tuple(spec["argv"][1:4]) == module_argv("trainer")[1:]:  # with any interpreter
            content["train"] = read_json(folder / "config.json", MAX_BYTES)
        else:
            # `meshtune train` puts its own folder in place of the trial's.
            content["command"] = [a.replace(str(folder), Best.TRIAL_DIR) for a in spec["argv"]]
        if len(run.goals) > 1:
            content["front"] = [
                {"trial": t.number, "objectives": dict(t.objectives), "parameters": dict(t.config)}
                for t in run.front()
            ]
        content |= {key: spec[key] for key in _CARRIED if spec.get(key)}
        if "files" in spec:
            content["files"] = {
                name: text.replace(str(folder), Best.TRIAL_DIR)
                for name, text in spec["files"].items()
            }
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the files of trial {run.best.number} in {folder} cannot be read: {error}"
    space = json.dumps(run.space)  # a comment has to stay on one line
    of = counted(len(run.trials), "trial")
    head = f"# The best of {of} of {space}: trial {run.best.number}.\n"
    write_atomically(path, head + written_document(content), private=True)
    return ""


def _is_best(document: Document) -> bool:
    root = document.root.plain()
    return isinstance(root, dict) and root.get("meshtune_best") == 1
