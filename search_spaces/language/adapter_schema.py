"""The record of a known trainer: its options, its log and its habits.

Data, not code: one file ``known_trainers/NAME.yaml`` per trainer, or a user's own file beside the
space. A record with a ``command`` is an adapter: it writes a configuration in the trainer's own
options. The others are of frameworks and logs that meshtune knows and does not start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from foundation.records import Described, Named
from foundation.values import Identifier, Scalar, VariableName
from search_spaces.frameworks import Framework, RecordedHabits
from search_spaces.language.log_schema import FormatName, LogRecord
from search_spaces.shipped import known_trainers, read_named

if TYPE_CHECKING:
    FrameworkName: TypeAlias = str
else:
    FrameworkName = Literal[known_trainers("habits")]


class Setting(Described):
    """Options that a trainer gets for one parameter or fact; values are templates (``{tp}``)."""

    when: str | None = Field(default=None, description="an expression; default always")
    unless: list[str] = Field(default=[])
    """options or paths, or what these begin with, of which the user's own arguments or file may
    have one instead"""
    given: list[str] = Field(default=[])
    """likewise, of which they must have one: another version's, say"""
    arguments: dict[str, Any] = Field(default={})
    """option: value; true is a flag, a list several values"""
    words: list[str] = Field(default=[])
    """arguments that are no options, and the last ones"""
    file: dict[str, Any] = Field(default={}, description="dotted path: value")
    environment: dict[VariableName, str] = Field(default={}, description="variable: value")
    same: dict[str, Scalar] = Field(default={})
    """other options that state the same, as earlier versions have them; read only"""

    @model_validator(mode="after")
    def _unconditional(self) -> Setting:
        if self.environment and self.when is not None:
            raise ValueError("'environment' goes without 'when': let its value be an expression")
        return self

    def applies(self, stated: Collection[str]) -> bool:
        """Whether it goes with these options and paths of the user's: ``unless``, ``given``."""
        return not any(key in stated for key in self.unless) and (
            not self.given or any(key in stated for key in self.given)
        )


class ModelKey(Described):
    """A trainer's key for one field of the model's record."""

    key: str = ""
    """an option, or a dotted path of the file; none: always the default"""
    renamed: dict[str, str] = Field(default={})
    """an option or path that another version has: its name of the key; the first stated counts"""
    values: dict[str, Scalar] = Field(default={})
    """the record's value: the trainer's; others are the same in both"""
    text: str | dict[str, str] | None = None
    """the trainer's value where 'values' has none: a template of the record's fields, or
    expression: template; without {this field} in it, it is written and not read"""
    reads: str = ""
    """the record's value: a template of 'stated', the trainer's number, and of fields above"""
    default: Scalar | dict[str, Scalar] | None = None
    """the record's value where the key is missing; expression: value, where it depends on other
    fields"""
    also: dict[str, Any] = Field(default={}, description="options that are written beside it")
    implied: dict[str, dict[str, Scalar]] = Field(default={})
    """another option, and the record's value by that option's; '*' is any other"""


class BatchProduct(Described):
    """Options whose product is the global batch, where no option states it."""

    of: list[str] = Field(min_length=1)
    """options or paths; only the first one has to be stated"""
    times: Literal["replicas", "ranks"] | None = None


class ModelNames(Described):
    """Models that a trainer knows by name."""

    keys: list[str] = Field(min_length=1, description="options or paths that name one")
    names: dict[str, str]
    """the stated keys' values, with a space between: the record; '' if the sizes count"""


class WrittenFile(Described):
    """The trainer's configuration file, unless it is empty; the user's own is its base."""

    name: str = Field(description="in the trial's folder; its suffix is its format")
    arguments: list[str] = Field(default=[], description="that name it on the command line")
    required: bool = Field(default=False, description="nothing runs without the user's own")
    underscores: bool = False
    """keys of the user's own may have dashes for underscores"""
    options: bool = False
    """its dotted paths are options as well, which count for more than it does"""
    defaults: bool = False
    """what it says of the model is a default, and contradicts nothing"""


class HabitRule(Described):
    """Options that state a habit."""

    key: str | list[str]
    """option, dotted path or variable; of several, the mean of their numbers"""
    values: dict[str, Any] = Field(default={})
    """the habit by the option's value; none: the number itself"""
    default: Any = None
    """the habit without the option, if it is so in every version"""
    given: list[str] = Field(default=[])
    """options of which there must be one"""

    def value(self, stated: Mapping[str, Any], absent: bool) -> Any:
        """The habit that stated options mean, or their absence; None where that says nothing."""
        keys = [self.key] if isinstance(self.key, str) else self.key
        lacking = stated.keys().isdisjoint
        if (self.given and lacking(self.given)) or (lacking(keys) and not absent):
            return None
        found = [self._meaning(stated[key]) if key in stated else self.default for key in keys]
        return fmean(found) if len(found) > 1 and None not in found else found[0]

    def _meaning(self, value: Any) -> Any:
        if not self.values:
            return value if type(value) in (int, float) and 0 <= value < inf else None
        return self.values.get(str(value).lower() if isinstance(value, bool) else str(value))


def _key(value: Any) -> Any:
    return {"key": value} if isinstance(value, str) else value


def _settings(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


_Rules = Annotated[list[HabitRule], BeforeValidator(_settings)]
_Settings = Annotated[list[Setting], BeforeValidator(_settings)]


class KnownTrainer(Described):
    """A trainer whose habits or whose log meshtune knows."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)
    description: str = ""
    """one line, which `meshtune list` shows"""
    source: str = Field(description="files that this record is from, and their versions")
    log: Named[FormatName, LogRecord] | None = None
    """patterns of its log, or the known trainer that logs alike"""
    habits: RecordedHabits | None = None
    """what it keeps in memory, and how it communicates"""
    stated: dict[str, _Rules] = Field(default={})
    """habit: options that state it; the first that does so counts"""

    @field_validator("stated")
    @classmethod
    def _of_habits(cls, stated: dict[str, list[HabitRule]]) -> dict[str, list[HabitRule]]:
        for name, rules in stated.items():
            for value in (v for rule in rules for v in (rule.default, *rule.values.values())):
                if value is not None and not Framework.is_habit(name, value):
                    raise ValueError(f"{name}: {value!r} is no value of a habit of that name")
        return stated

    def stated_habits(self, options: Mapping[str, Any], absent: bool) -> dict[str, Any]:
        """Habits that options state, by name; ``absent``: so do the defaults of missing ones."""
        each = {n: [rule.value(options, absent) for rule in r] for n, r in self.stated.items()}
        known = {name: [v for v in values if v is not None] for name, values in each.items()}
        return {name: values[0] for name, values in known.items() if values}


class AdapterFile(KnownTrainer):
    """A known trainer that meshtune can start: also its command line, its file and its model."""

    @classmethod
    def named(cls, name: str, folder: Path = Path()) -> AdapterFile:
        """An adapter by its shipped name, or that of a file (``*.yaml``).

        Raises SpaceError that begins with ``found``, if there is none.
        """
        return read_named(cls, "adapter", name, folder)

    framework: FrameworkName = Field(description="whose habits the cost model assumes")
    frameworks: dict[str, FrameworkName] = Field(default={})
    """option, path or variable: whose habits instead, where the user states it"""
    command: list[str] = Field(min_length=1)
    """argv before the options; {entry} is the user's script, or module behind python"""
    entry: str = Field(default="", description="the script, where the space names none")
    options: Literal["--key value", "--key=value", "key=value"] = "--key value"
    """how an option is written"""
    file: WrittenFile | None = None
    settings: dict[Identifier, _Settings] = Field(default={})
    """parameter or fact: options that the trainer gets for it"""
    always: list[Setting] = Field(default=[], description="options of every trial: steps, logging")
    dropped: list[str] = Field(default=[])
    """the user's options that trials do without: checkpoints and the like"""
    constraints: dict[Identifier, list[str]] = Field(default={})
    """parameter: the trainer's constraints on it; those with names that the space lacks are left
    out"""
    absent: dict[Identifier, str] = Field(default={})
    """parameter: an expression that stands for it in constraints and conditions where the space has
    none"""
    conditions: dict[Identifier, str] = Field(default={})
    """parameter: where it has an effect"""
    model: dict[Identifier, Annotated[ModelKey, BeforeValidator(_key)]] = Field(default={})
    """field of the model's record: the trainer's key"""
    model_in: Literal["arguments", "file"] = "arguments"
    models: ModelNames | None = None
    sequence_length: list[str] = Field(default=[])
    """options for the sequence length that scripts often have; read only"""
    batch: BatchProduct | None = None
    together: list[list[str]] = Field(default=[])
    """options of which none is of use without the others that are stated"""

    def in_version(self, stated: Collection[str]) -> AdapterFile:
        """The adapter with the model's keys as the version has them whose options are stated."""
        keys = dict(self.model)
        for field, key in keys.items():
            names = [name for option, name in key.renamed.items() if option in stated]
            keys[field] = key.model_copy(update={"key": [*names, key.key][0]})
        return self.model_copy(update={"model": keys})

    @model_validator(mode="after")
    def _has_its_file(self) -> AdapterFile:
        every = [*self.always, *(s for settings in self.settings.values() for s in settings)]
        uses = any(setting.file for setting in every) or self.model_in == "file"
        if uses and self.file is None:
            raise ValueError("'file' is missing: settings or the model are written in one")
        return self
