"""The ``trainer`` section of a space file: a trial's program, and how its metrics are found."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from foundation.container import ContainerOrImage
from foundation.records import Described, Named
from foundation.values import Identifier, VariableName
from search_spaces.frameworks import FrameworkName, StatedHabits
from search_spaces.language.log_schema import ResultPatterns
from search_spaces.shipped import known_trainers
from slurm import parsed_python
from trainer.plan.axes.mesh import FURTHER_AXES
from trainer.plan.fields import Precision, Settings

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)]


def _or_null(schema: dict[str, Any]) -> None:
    """Every key that may be left out may be null as well."""
    for name, value in schema["properties"].items():
        if name not in schema["required"] and "anyOf" not in value:
            outer = {key: value.pop(key) for key in {*value} & {"default", "description", "title"}}
            schema["properties"][name] = {"anyOf": [value, {"type": "null"}], **outer}


class BuiltinTrainer(Settings):
    """Settings of the built-in trainer that every trial shares (see ``trainer.plan.fields``)."""

    model_config = ConfigDict(json_schema_extra=_or_null)

    data: str = Field(min_length=1)
    """prefix of an indexed token file, or python-source: the text of Python's own standard library,
    prepared when the search starts"""
    precision: Precision = "bf16"
    save: str | None = None
    """folder for checkpoints, in the trial's own unless absolute"""
    load: str | None = None
    """folder with checkpoints of this model. An absolute path: every trial resumes from the latest;
    the same as save: a trial that is repeated resumes from its own"""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: v for key, v in values.items() if v is not None or key == "data"}
        return values

    @model_serializer
    def _given(self) -> dict[str, Any]:
        """Settings that are set, even to their defaults, as the trainer's defaults may change."""
        return {n: getattr(self, n) for n in type(self).model_fields if n in self.model_fields_set}


class Flags(Described):
    """Arguments that a command has only in some configurations."""

    when: str
    """an expression, such as sequence_parallel or recompute == 'full'"""
    args: list[str] = Field(min_length=1)


CommandEntry = Named[str, Flags]
_CONTINUED = re.compile(r"\\\n|\\\s+(?=-|$)")  # YAML's ">" makes a space of the line's end


def _arguments(value: Any) -> Any:
    """A command line as one text, as in a shell; numbers need no quotes."""
    if isinstance(value, str):
        try:
            return shlex.split(_CONTINUED.sub(" ", value), comments=True)
        except ValueError as error:
            raise ValueError(f"accepted a command line ({error})") from None
    if isinstance(value, (list, tuple)):
        return [str(v) if type(v) in (int, float) else v for v in value]
    return value


class FileCase(Described):
    """Values that a file has only in some configurations."""

    when: str
    """an expression, such as recompute == 'full'"""
    set: dict[str, Any] = Field(min_length=1)


class ConfigFile(Described):
    """A file that is written into a trial's folder before it starts."""

    base: str | None = None
    """a file with all other content, beside the space or absolute"""
    content: dict[str, Any] | None = None
    """the file's whole content, in place of base"""
    set: dict[str, Any] = Field(default={})
    """dotted path: value, in which {tp} and the like are replaced"""
    cases: list[FileCase] = Field(default=[])
    """further values, where 'when' is true"""

    @model_validator(mode="after")
    def _one(self) -> ConfigFile:
        if self.base is not None and self.content is not None:
            raise ValueError("accepted one of: base, content")
        return self

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Values by dotted path: those of all configurations, then those of each case."""
        return [self.set, *(case.set for case in self.cases)]


class TrainerSpec(Described):
    """The program of a trial: the built-in trainer, a well-known one, the user's own command, or an
    installed trainer.
    """

    builtin: BuiltinTrainer | None = None
    adapter: str | None = Field(default=None, min_length=1)
    """a well-known trainer, or a file (*.yaml) of one"""
    entry: str | None = Field(default=None, min_length=1)
    """the script that the adapter's trainer starts"""
    args: Annotated[list[CommandEntry], BeforeValidator(_arguments)] = Field(default=[])
    """further arguments of the script: a list, or a command line as one text"""
    config: str | None = Field(default=None, min_length=1)
    """the configuration file of the adapter's trainer"""
    command: list[CommandEntry] | None = Field(default=None, min_length=1)
    """argv of every rank, without a shell: {tp} and {dp // cp} are replaced, and {when: EXPRESSION,
    args: [...]} adds arguments where the expression is true"""
    made_by: str | None = Field(default=None, min_length=1)
    """the adapter that wrote the command of a run's space"""
    use: str | None = Field(default=None, min_length=1)
    """name of an installed trainer"""
    options: dict[str, Any] = Field(default={})
    """options of the installed trainer"""
    result: ResultPatterns | None = None
    files: dict[str, ConfigFile] = Field(default={})
    """JSON, YAML or TOML files of a command, by their name in the folder"""
    env: dict[VariableName, str] = Field(default={})
    """environment of every rank, in which {tp} and the like are replaced"""
    workdir: str | None = Field(default=None, min_length=1)
    """folder in which every rank is started, beside the space or absolute; default the trial's own.
    Results, files and logs stay in the trial's: {trial_dir}, MESHTUNE_TRIAL_DIR"""
    container: ContainerOrImage | None = None
    """the image that every rank runs in, by its name or with mounts; the site profile names the
    runtime"""
    preload: list[ModuleName] | None = None
    """modules, such as torch, that are imported once for many trials: srun's processes outlive a
    trial and fork the next one's ranks; default: the built-in trainer's own once starting takes
    longer than the steps, none for a command; []: never"""
    framework: Named[FrameworkName, StatedHabits] | None = Field(
        default=None,
        description="framework whose habits the cost model assumes for a command "
        f"({', '.join(known_trainers('habits'))}; the search infers those of any other), or a "
        "mapping of it as base and of habits that are certain; default megatron-lm",
    )
    axes: list[Identifier] = Field(default=[])
    """parameters that are further parallel axes of a command, innermost first, between tp and dp;
    the number of ranks is the product of all axes"""

    @property
    def words(self) -> list[str]:
        """Every word of the command, conditional ones included."""
        entries = self.command or ()
        return [w for e in entries for w in ([e] if isinstance(e, str) else e.args)]

    @model_validator(mode="after")
    def _one(self) -> TrainerSpec:
        if [self.builtin, self.adapter, self.command, self.use].count(None) != 3:
            raise ValueError("accepted exactly one of: builtin, adapter, command, use")
        own = self.command is not None or self.adapter is not None
        own_axes = own or (self.builtin is not None and {*self.axes} <= {*FURTHER_AXES})
        adapted = (self.adapter is not None, "'adapter'")
        for name, accepted, partner in (
            *((name, *adapted) for name in ("entry", "args", "config")),
            ("workdir", self.builtin is None, "a trainer of your own"),
            (
                "container",
                self.builtin is None,
                "a trainer of your own: the built-in one needs meshtune's own environment",
            ),
            ("options", self.use is not None, "'use'"),
            ("made_by", self.command is not None, "'command'"),
            ("framework", own, "'command'; the built-in trainer is known"),
            ("axes", own_axes, "'command'; the built-in trainer has its own"),
            ("files", own, "'command'"),
            ("result", own, "'command'; the built-in trainer writes its own"),
        ):
            if getattr(self, name) and not accepted:
                raise ValueError(f"'{name}' goes with {partner}")
        words = [entry for entry in self.command or () if isinstance(entry, str)]
        if self.preload and self.command and parsed_python(words) is None:
            raise ValueError(
                "'preload' goes with a command that starts with python, then a script, -m or -c: "
                f"found {self.command[0]}"
            )
        return self
