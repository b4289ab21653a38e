"""The record of a known trainer: its options, its log and its habits.

Data, not code: one file ``known_trainers/NAME.yaml`` per trainer, or a user's own file beside the
space. A record with a ``command`` is an adapter: it writes a configuration in the trainer's own
options. The others describe frameworks and logs that meshtune knows but does not start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from foundation.quantities import scalar_text
from foundation.records import Described, Named, OneOf
from foundation.values import Identifier, Scalar, VariableName
from search_spaces.frameworks import Framework, RecordedHabits
from search_spaces.language.log_schema import FormatName, LogRecord
from search_spaces.shipped import known_trainers, read_named

FrameworkName = Annotated[str, OneOf(known_trainers("habits"))]
_MODULE = re.compile(r"(?!.*\.py$)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")  # trl.scripts.sft


class Setting(Described):
    """Options that a trainer gets for one parameter or fact; values are templates (``{tp}``)."""

    when: str | None = Field(default=None, description="an expression; default always")
    unless: list[str] = Field(default=[])
    """options or paths, or prefixes of these: if the user's own arguments or file have one, the
    setting is left out"""
    given: list[str] = Field(default=[])
    """likewise, but they must have one, such as an option of another version"""
    arguments: dict[str, Any] = Field(default={})
    """option: value; true is a flag, a list several values"""
    words: list[str] = Field(default=[])
    """arguments that are no options, and the last ones"""
    file: dict[str, Any] = Field(default={}, description="dotted path: value")
    environment: dict[VariableName, str] = Field(default={}, description="variable: value")
    same: dict[str, Scalar] = Field(default={})
    """other options with the same meaning, such as those of earlier versions; only read"""

    @model_validator(mode="after")
    def _unconditional(self) -> Setting:
        if self.environment and self.when is not None:
            raise ValueError("'environment' goes without 'when': let its value be an expression")
        return self

    def applies(self, stated: Collection[str]) -> bool:
        """Whether ``unless`` and ``given`` allow it beside these options and paths of the user."""
        return not any(key in stated for key in self.unless) and (
            not self.given or any(key in stated for key in self.given)
        )


class ModelKey(Described):
    """A trainer's key for one field of the model's record."""

    key: str = ""
    """an option, or a dotted path of the file; without one: always the default"""
    renamed: dict[str, str] = Field(default={})
    """an option or path that another version has: its name of the key; the first stated counts"""
    values: dict[str, Scalar] = Field(default={})
    """the record's value: the trainer's; other values are the same in both"""
    text: str | dict[str, str] | None = None
    """the trainer's value if 'values' has none: a template of the record's fields, or
    expression: template; without {this field} in it, it is written but not read"""
    same: dict[str, Scalar] = Field(default={})
    """further texts of the trainer, as regular expressions, and the record's value; only read"""
    reads: str = ""
    """the record's value: a template of 'stated', the trainer's number, and of fields above"""
    default: Scalar | dict[str, Scalar] | None = None
    """the record's value if the key is missing; expression: value, if it depends on other
    fields"""
    also: dict[str, Any] = Field(default={}, description="options that are written beside it")
    implied: dict[str, dict[str, Scalar]] = Field(default={})
    """another option, and the record's value by that option's; '*' is any other"""


class BatchProduct(Described):
    """Options whose product is the global batch, if no option states it."""

    of: list[str] = Field(min_length=1)
    """options or paths; only the first one has to be stated"""
    times: Literal["replicas", "ranks"] | None = None


class ModelNames(Described):
    """Models with a name that the trainer knows."""

    keys: list[str] = Field(min_length=1, description="options or paths that name one")
    names: dict[str, str]
    """stated values of the keys, separated by spaces: the record; '' if the stated sizes count"""


class WrittenFile(Described):
    """The trainer's configuration file, unless it is empty; the user's own is its base."""

    name: str = Field(description="in the trial's folder; its suffix is its format")
    arguments: list[str] = Field(default=[], description="that name it on the command line")
    required: bool = Field(default=False, description="nothing runs without the user's own")
    underscores: bool = False
    """keys of the user's own may have dashes for underscores"""
    options: bool = False
    """its dotted paths are also options, which override it"""
    defaults: bool = False
    """its keys of the model are defaults, which contradict nothing"""
    named: list[str] = Field(default=[])
    """keys whose value may be the name of a further file, whose content takes its place"""


class HabitRule(Described):
    """Options that state a habit."""

    key: str | list[str]
    """option, dotted path or variable; for several, the mean of their numbers"""
    values: dict[str, Any] = Field(default={})
    """the habit for each value of the option; without it: the number itself"""
    default: Any = None
    """the habit without the option, if all versions have it"""
    given: list[str] = Field(default=[])
    """options of which one must be stated"""

    def value(self, stated: Mapping[str, Any], absent: bool) -> Any:
        """The habit that follows from stated options, or from their absence; None if none does."""
        keys = [self.key] if isinstance(self.key, str) else self.key
        lacking = stated.keys().isdisjoint
        if (self.given and lacking(self.given)) or (lacking(keys) and not absent):
            return None
        found = [self._meaning(stated[key]) if key in stated else self.default for key in keys]
        return fmean(found) if len(found) > 1 and None not in found else found[0]

    def _meaning(self, value: Any) -> Any:
        if not self.values:
            return value if type(value) in (int, float) and 0 <= value < inf else None
        return self.values.get(scalar_text(value))


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
    """patterns of its log, or the known trainer that has the same log"""
    habits: RecordedHabits | None = None
    """what it keeps in memory, and how it communicates"""
    stated: dict[str, _Rules] = Field(default={})
    """habit: options that state it; the first stated one counts"""

    @field_validator("stated")
    @classmethod
    def _of_habits(cls, stated: dict[str, list[HabitRule]]) -> dict[str, list[HabitRule]]:
        for name, rules in stated.items():
            for value in (v for rule in rules for v in (rule.default, *rule.values.values())):
                if value is not None and not Framework.is_habit(name, value):
                    raise ValueError(f"{name}: {value!r} is no value of a habit of that name")
        return stated

    def stated_habits(self, options: Mapping[str, Any], absent: bool) -> dict[str, Any]:
        """Habits that options state, by name; ``absent``: missing options state their defaults."""
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

    def is_module(self, entry: str) -> bool:
        """Whether the command, of python and a script, needs a ``-m`` before this entry."""
        return self.command == ["python", "{entry}"] and bool(_MODULE.fullmatch(entry))

    framework: FrameworkName = Field(description="whose habits the cost model assumes")
    frameworks: dict[str, FrameworkName] = Field(default={})
    """option, path or variable: whose habits instead, if the user states it"""
    command: list[str] = Field(min_length=1)
    """argv before the options; {entry} is the user's script, or module behind python"""
    entry: str = Field(default="", description="the script, where the space names none")
    entries: dict[str, dict[str, str]] = Field(default={})
    """option or path: the script in its place where the value matches a regular expression"""
    options: Literal["--key value", "--key=value", "key=value"] = "--key value"
    """how an option is written"""
    file: WrittenFile | None = None
    settings: dict[Identifier, _Settings] = Field(default={})
    """parameter or fact: options that the trainer gets for it"""
    always: list[Setting] = Field(default=[], description="options of every trial: steps, logging")
    dropped: list[str] = Field(default=[])
    """the user's options that trials omit: checkpoints and the like"""
    constraints: dict[Identifier, list[str]] = Field(default={})
    """parameter: the trainer's constraints on it; a constraint with a name that the space lacks is
    left out"""
    absent: dict[Identifier, str] = Field(default={})
    """parameter: an expression that replaces it in constraints and conditions if the space lacks
    it"""
    conditions: dict[Identifier, str] = Field(default={})
    """parameter: where it has an effect"""
    conditions_under: dict[str, dict[Identifier, str]] = Field(default={})
    """option, path or a prefix of it: such conditions instead, if the user states it"""
    constraints_under: dict[str, dict[Identifier, list[str]]] = Field(default={})
    """the same of constraints"""
    model: dict[Identifier, Annotated[ModelKey, BeforeValidator(_key)]] = Field(default={})
    """field of the model's record: the trainer's key"""
    model_in: Literal["arguments", "file"] = "arguments"
    models: ModelNames | None = None
    sequence_length: list[str] = Field(default=[])
    """options for the sequence length that scripts often have; only read"""
    batch: BatchProduct | None = None
    usual: dict[Identifier, Scalar] = Field(default={})
    """parameter: the trainer's own value, which a first space has where no option states one"""
    unmodelled: dict[str, Scalar] = Field(default={})
    """an option of models that the record has no field for: the only value that is accepted"""
    together: list[list[str]] = Field(default=[])
    """options that work only with the other stated ones of the group"""

    def in_version(self, stated: Collection[str]) -> AdapterFile:
        """The adapter as the version has it whose options are stated."""
        keys, conditions = dict(self.model), dict(self.conditions)
        constraints = dict(self.constraints)
        for option in stated:
            conditions |= self.conditions_under.get(option, {})
            constraints |= self.constraints_under.get(option, {})
        for field, key in keys.items():
            names = [name for option, name in key.renamed.items() if option in stated]
            keys[field] = key.model_copy(update={"key": [*names, key.key][0]})
        changes = {"model": keys, "conditions": conditions, "constraints": constraints}
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _has_its_file(self) -> AdapterFile:
        every = [*self.always, *(s for settings in self.settings.values() for s in settings)]
        uses = any(setting.file for setting in every) or self.model_in == "file"
        if uses and self.file is None:
            raise ValueError("'file' is missing: settings or the model are written in one")
        return self
