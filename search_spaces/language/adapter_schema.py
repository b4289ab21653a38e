"""The record of a known trainer: its options, its log and its habits.

Data, not code: one file ``known_trainers/NAME.yaml`` per trainer, or a user's own file beside the
space. A record with a ``command`` is an adapter: it writes a configuration in the trainer's own
options. The others are of frameworks and logs that meshtune knows and does not start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from foundation.records import Record
from foundation.values import Identifier, Scalar, VariableName
from search_spaces.frameworks import Habits
from search_spaces.language.log_schema import FormatName, LogRecord
from search_spaces.shipped import known_trainers, read_named

if TYPE_CHECKING:
    FrameworkName: TypeAlias = str
else:
    FrameworkName = Literal[known_trainers("habits")]


class Setting(Record):
    """Options that a trainer gets for one parameter or fact; values are templates (``{tp}``)."""

    when: str | None = Field(default=None, description="an expression; default always")
    unless: list[str] = Field(
        default=[],
        description="options or paths, or what these begin with, of which the user's own arguments "
        "or file may have one instead",
    )
    given: list[str] = Field(
        default=[],
        description="likewise, of which they must have one: another version's, say",
    )
    arguments: dict[str, Any] = Field(
        default={}, description="option: value; true is a flag, a list several values"
    )
    words: list[str] = Field(
        default=[], description="arguments that are no options, and the last ones"
    )
    file: dict[str, Any] = Field(default={}, description="dotted path: value")
    environment: dict[VariableName, str] = Field(default={}, description="variable: value")
    same: dict[str, Scalar] = Field(
        default={},
        description="other options that state the same, as earlier versions have them; read only",
    )

    @model_validator(mode="after")
    def _unconditional(self) -> Setting:
        if self.environment and self.when is not None:
            raise ValueError("'environment' goes without 'when': let its value be an expression")
        return self


class ModelKey(Record):
    """A trainer's key for one field of the model's record."""

    key: str = Field(
        default="", description="an option, or a dotted path of the file; none: always the default"
    )
    values: dict[str, Scalar] = Field(
        default={}, description="the record's value: the trainer's; others are the same in both"
    )
    text: str | dict[str, str] | None = Field(
        default=None,
        description="the trainer's value where 'values' has none: a template of the record's "
        "fields, or expression: template; without {this field} in it, it is written and not read",
    )
    default: Scalar | dict[str, Scalar] | None = Field(
        default=None,
        description="the record's value where the key is missing; expression: value, where it "
        "depends on other fields",
    )
    also: dict[str, Any] = Field(default={}, description="options that are written beside it")
    implied: dict[str, dict[str, Scalar]] = Field(
        default={},
        description="another option, and the record's value by that option's; '*' is any other",
    )


class BatchProduct(Record):
    """Options whose product is the global batch, where no option states it."""

    of: list[str] = Field(
        min_length=1, description="options or paths; only the first one has to be stated"
    )
    times: Literal["replicas", "ranks"] | None = None


class ModelNames(Record):
    """Models that a trainer knows by name."""

    keys: list[str] = Field(min_length=1, description="options or paths that name one")
    names: dict[str, str] = Field(
        description="the keys' values, with a space between: the record; '' if the sizes count"
    )


class WrittenFile(Record):
    """The trainer's configuration file; the user's own, ``trainer.config``, is its base.

    It is written unless it is empty.
    """

    name: str = Field(description="in the trial's folder; its suffix is its format")
    arguments: list[str] = Field(default=[], description="that name it on the command line")
    required: bool = Field(default=False, description="nothing runs without the user's own")
    underscores: bool = Field(
        default=False, description="keys of the user's own may have dashes for underscores"
    )
    options: bool = Field(
        default=False,
        description="its dotted paths are options as well, which count for more than it does",
    )
    defaults: bool = Field(
        default=False, description="what it says of the model is a default, and contradicts nothing"
    )


def _key(value: Any) -> Any:
    return {"key": value} if isinstance(value, str) else value


def _settings(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


_Settings = Annotated[list[Setting], BeforeValidator(_settings)]


def _log(value: Any) -> str:
    return "<name>" if isinstance(value, str) else "<patterns>"


class KnownTrainer(Record):
    """A trainer whose habits or whose log meshtune knows."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)
    source: str = Field(description="files that this record is from, and their versions")
    log: (
        Annotated[
            Annotated[FormatName, Tag("<name>")] | Annotated[LogRecord, Tag("<patterns>")],
            Discriminator(_log),
        ]
        | None
    ) = Field(default=None, description="patterns of its log, or the known trainer that logs alike")
    habits: Habits | None = Field(
        default=None, description="what it keeps in memory, and how it communicates"
    )


class AdapterFile(KnownTrainer):
    """A known trainer that meshtune can start: also its command line, its file and its model."""

    @classmethod
    def named(cls, name: str, folder: Path = Path()) -> AdapterFile:
        """An adapter by its shipped name, or that of a file (``*.yaml``).

        Raises:
            SpaceError: that begins with ``found``, if there is none.
        """
        return read_named(cls, "adapter", name, folder)

    framework: FrameworkName = Field(description="whose habits the cost model assumes")
    frameworks: dict[str, FrameworkName] = Field(
        default={},
        description="option, path or variable: whose habits instead, where the user states it",
    )
    command: list[str] = Field(
        min_length=1, description="argv before the options; {entry} is the user's script"
    )
    entry: str = Field(default="", description="the script, where the space names none")
    options: Literal["--key value", "--key=value", "key=value"] = Field(
        default="--key value", description="how an option is written"
    )
    file: WrittenFile | None = None
    settings: dict[Identifier, _Settings] = Field(
        default={}, description="parameter or fact: options that the trainer gets for it"
    )
    always: list[Setting] = Field(default=[], description="options of every trial: steps, logging")
    dropped: list[str] = Field(
        default=[],
        description="the user's options that trials do without: checkpoints and the like",
    )
    constraints: dict[Identifier, list[str]] = Field(
        default={},
        description="parameter: the trainer's constraints on it; those with names that the space "
        "lacks are left out",
    )
    absent: dict[Identifier, str] = Field(
        default={},
        description="parameter: an expression that stands for it in constraints and conditions "
        "where the space has none",
    )
    conditions: dict[Identifier, str] = Field(
        default={}, description="parameter: where it has an effect"
    )
    model: dict[Identifier, Annotated[ModelKey, BeforeValidator(_key)]] = Field(
        default={}, description="field of the model's record: the trainer's key"
    )
    model_in: Literal["arguments", "file"] = "arguments"
    models: ModelNames | None = None
    sequence_length: list[str] = Field(
        default=[],
        description="options for the sequence length that scripts often have; read only",
    )
    batch: BatchProduct | None = None
    together: list[list[str]] = Field(
        default=[],
        description="options of which none is of use without the others that are stated",
    )

    @model_validator(mode="after")
    def _has_its_file(self) -> AdapterFile:
        every = [*self.always, *(s for settings in self.settings.values() for s in settings)]
        uses = any(setting.file for setting in every) or self.model_in == "file"
        if uses and self.file is None:
            raise ValueError("'file' is missing: settings or the model are written in one")
        return self
