"""From a well-known trainer's name to its command, its file and its environment.

``trainer: {adapter: megatron-lm, entry: pretrain_gpt.py}`` becomes the command that a user would
have written out: everything after it (checks, trials, the frozen space) knows commands alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import AdapterFile, Setting, WrittenFile
from search_spaces.language.fields import Scalar
from search_spaces.language.schema import ModelFile, SpaceFile
from search_spaces.language.trainer_schema import (
    ConfigFile,
    FileCase,
    Flags,
    ResultPatterns,
    TrainerSpec,
)
from search_spaces.rules.facts import DERIVED
from search_spaces.shipped import SHIPPED, named, read_named
from search_spaces.trainers import config_files, model_keys, options, templates
from slurm import Document, plain_scalar
from trainer import ModelConfig

_IS = re.compile(r"(?P<name>\w+)(?: == '?(?P<value>[^']+?)'?)?")  # sequence_parallel; zero == 1
MOST_DIVISORS = 200


def shipped_adapters() -> list[str]:
    """Names of the well-known trainers."""
    return sorted(path.stem for path in (SHIPPED / "adapters").glob("*.yaml"))


def read_adapter(name: str, folder: Path = Path()) -> AdapterFile:
    """A well-known trainer's record by its name, or that of a file.

    Raises:
        SpaceError: that begins with ``found``, if there is none.
    """
    return read_named(AdapterFile, "adapter", name, folder)


def adapted(
    document: Document, file: SpaceFile, model: ModelConfig | None, facts: Collection[str]
) -> tuple[SpaceFile, ModelConfig | None]:
    """The file with its adapter's trainer as a command, and the model that is trained.

    What the user's own arguments or file fix becomes a parameter of one value, so that rules and
    cost model know it; what the search sets replaces theirs.

    Args:
        document: where mistakes are shown.
        file: a space.
        model: that it names; where it names none, the trainer's own arguments or file say it.
        facts: names that templates can use besides parameters and the model's.

    Raises:
        SpaceError: if the trainer needs what the space does not say, or is told two things.
    """
    if file.trainer.adapter is None:
        return file, model
    adapter = named(AdapterFile, ("trainer", "adapter"), file.trainer.adapter, document)
    return _Adapting(document, file, adapter).result(model, facts)


class _Adapting:
    """One space with one adapter."""

    def __init__(self, document: Document, file: SpaceFile, adapter: AdapterFile) -> None:
        self.document, self.file, self.adapter = document, file, adapter
        self.spec = file.trainer
        self.base = self._base()
        self.paths = _flat(self.base)
        own = options.read(self.spec.args, adapter.options)
        written = adapter.file or WrittenFile(name="")
        self.options = {**self.paths, **own} if written.options else own
        self.told = self.options if adapter.model_in == "arguments" else self.paths
        if written.defaults:
            self.told = own
        self.parameters: dict[str, Any] = {**file.parameters, **self._fixed()}

    def result(
        self, model: ModelConfig | None, facts: Collection[str]
    ) -> tuple[SpaceFile, ModelConfig | None]:
        model = self._model(model)
        batch = self._batch()
        known = {*facts, *self.parameters, *model_keys.names(model)}
        if {"mbs", "gas"} <= known:
            known.add("global_batch_size")
        heeded = {
            name: text
            for name, condition in self.adapter.conditions.items()
            if name in self.parameters and (text := self._of(condition, known)) is not None
        }
        conditions = {**heeded, **self.file.conditions}
        chosen = list(self._chosen(known, conditions))
        files = self._files(chosen, model)
        trainer = TrainerSpec(
            command=self._command(chosen, model, files),
            files=files,
            env={**{k: v for s in chosen for k, v in s.environment.items()}, **self.spec.env},
            result=self._log(),
            framework=self.spec.framework or self.adapter.framework,
            axes=self.spec.axes,
        )
        demands = [
            text
            for name, constraints in self.adapter.constraints.items()
            if name in self.parameters
            for constraint in constraints
            if (text := self._of(constraint, known)) is not None
        ]
        changes = {
            "trainer": trainer,
            "conditions": conditions,
            "parameters": self.parameters,
            "constraints": [*self.file.constraints, *batch, *demands],
        }
        return self.file.model_copy(update=changes), model

    def _base(self) -> dict[str, Any]:
        """The user's own configuration file."""
        file, path = self.adapter.file, ("trainer", "config")
        if self.spec.config is None:
            if file is not None and file.required:
                raise self.document.error(
                    ("trainer",),
                    f"key 'config' is missing: {self.adapter.name}'s configuration file",
                )
            return {}
        if file is None:
            raise self.document.error(
                path, f"{self.adapter.name} has arguments only, accepted: them, in args"
            )
        try:
            base = config_files.read_base(Path(self.document.name).parent / self.spec.config)
        except SpaceError as error:
            raise self.document.error(path, f"\n{error}", at_value=True) from None
        if file.underscores:
            base = {key.replace("-", "_"): value for key, value in base.items()}
        return base

    def _fixed(self) -> dict[str, Scalar]:
        """Parameters that the space does not have and that the user's arguments or file set."""
        found = {}
        for name, settings in self.adapter.settings.items():
            if name in DERIVED:
                continue
            values = [_value(name, setting, self.options, self.paths) for setting in settings]
            given = [value for value in values if value is not None]
            if given and name not in self.file.parameters:
                found[name] = given[0]
        return found

    def _batch(self) -> list[str]:
        """The constraint of a global batch that the user's arguments or file set.

        Where nothing accumulates gradients, ``gas`` is what the batch leaves it.
        """
        for setting in self.adapter.settings.get("global_batch_size", []):
            size = _value("global_batch_size", setting, self.options, self.paths)
            if isinstance(size, int) and size > 0 and "mbs" in self.parameters:
                self.parameters.setdefault("gas", _divisors(size))
                return [f"global_batch_size == {size}"]
        return []

    def _model(self, model: ModelConfig | None) -> ModelConfig | None:
        keys = self.adapter.model
        path = ("trainer", "args" if self.adapter.model_in == "arguments" else "config")
        if model is None:
            try:
                known = self._known_model()
                told = {**self.told, **self.options}
                return model_keys.read(keys, told, known) if known is not False else None
            except SpaceError as error:
                raise self.document.error(path, str(error)) from None
        if problem := model_keys.contradiction(keys, self.told, model):
            raise self.document.error(path, f"found {problem}: leave one of them out")
        return model

    def _known_model(self) -> ModelConfig | Literal[False] | None:
        """The model that the trainer is told by its name; None if by its sizes, False if it is one
        that is not known here.
        """
        models = self.adapter.models
        if models is None:
            return None
        said = [self.options.get(key, self.paths.get(key)) for key in models.keys]
        record = models.names.get(
            " ".join(map(str, said)), "" if said == [None] * len(said) else None
        )
        if not record:
            return None if record == "" else False
        return named(ModelFile, ("model",), record, self.document).config()

    def _of(self, expression: str, known: Collection[str]) -> str | None:
        """An expression of names that the space has; None if one is left that it has not."""
        for name, value in self.adapter.absent.items():
            if name not in known:
                expression = re.sub(rf"\b{name}\b", value, expression)
        return expression if templates.names("{" + expression + "}") <= set(known) else None

    def _chosen(self, known: Collection[str], conditions: Mapping[str, str]) -> Iterator[Setting]:
        """The settings of what the space has, and of any trial."""
        for setting in filter(self._applies, self.adapter.always):
            self._check("each trial", setting, known)
            yield setting
        for name, settings in self.adapter.settings.items():
            if name in self.parameters or (name in DERIVED and name in known):
                for setting in filter(self._applies, settings):
                    self._check(name, setting, known)
                    yield _where(conditions.get(name), setting)

    def _applies(self, setting: Setting) -> bool:
        """Whether a setting is of the version, and of the case, that the user's own are of."""
        told = _beginnings({*self.options, *self.paths})
        return told.isdisjoint(setting.unless) and (
            not setting.given or not told.isdisjoint(setting.given)
        )

    def _check(self, name: str, setting: Setting, known: Collection[str]) -> None:
        for lacking in sorted(names_of(setting) - set(known)):
            missing = "model" if lacking in ModelConfig.model_fields else f"parameter {lacking}"
            raise self.document.error(
                ("parameters", name) if name in self.file.parameters else ("trainer", "adapter"),
                f"{self.adapter.name} is told {name} by {lacking}: add the space's {missing}",
            )

    def _command(
        self, chosen: list[Setting], model: ModelConfig | None, files: Collection[str]
    ) -> list[str | Flags]:
        style = self.adapter.options
        replaced = {o for setting in chosen for o in (*setting.arguments, *setting.same)}
        if self.adapter.file is not None and self.adapter.file.name in files:
            replaced |= {text[2:] for text in self.adapter.file.arguments if text[:2] == "--"}
        own = options.without(self.spec.args, {*replaced, *self.adapter.dropped}, style)
        command: list[str | Flags] = [*self._program()]
        if self.adapter.file is not None and self.adapter.file.name in files:
            first = options.first(own, style)  # a subcommand of theirs goes before the file
            command += [*own[:first], *self.adapter.file.arguments, *own[first:]]
        else:
            command += own
        if model is not None and self.adapter.model_in == "arguments":
            told = model_keys.written(self.adapter.model, model, self.told)
            told = {option: value for option, value in told.items() if option not in replaced}
            command += options.written(told, style)
        for setting in sorted(chosen, key=lambda setting: bool(setting.words)):
            arguments = [*options.written(setting.arguments, style), *setting.words]
            if arguments and setting.when is not None:
                command.append(Flags(when=setting.when, args=arguments))
            else:
                command += arguments
        return command

    def _program(self) -> list[str]:
        entry = self.spec.entry or self.adapter.entry
        if not entry and any("{entry}" in text for text in self.adapter.command):
            raise self.document.error(
                ("trainer",),
                f"key 'entry' is missing: the script that {self.adapter.name} starts",
            )
        beside = Path(self.document.name).parent / entry
        if entry and beside.is_file():
            entry = str(beside.absolute())
        return [text.replace("{entry}", entry) for text in self.adapter.command]

    def _files(self, chosen: list[Setting], model: ModelConfig | None) -> dict[str, ConfigFile]:
        if self.adapter.file is None:
            return self.spec.files
        entries: dict[str, Any] = {}
        if model is not None and self.adapter.model_in == "file":
            entries |= model_keys.written(self.adapter.model, model, self.told)
        cases = []
        for setting in chosen:
            if setting.file and setting.when is not None:
                cases.append(FileCase(when=setting.when, set=setting.file))
            else:
                entries |= setting.file
        if self.spec.config is None and not (entries or cases):
            return self.spec.files
        base = config_files.without(self.base, self.adapter.dropped)
        own = ConfigFile(content=base, set=entries, cases=cases)
        return {**self.spec.files, self.adapter.file.name: own}

    def _log(self) -> ResultPatterns | None:
        result = self.spec.result
        if result is None:
            return ResultPatterns(format=self.adapter.log) if self.adapter.log else None
        return result if result.format else result.model_copy(update={"format": self.adapter.log})


def _value(
    name: str, setting: Setting, given: Mapping[str, Any], paths: Mapping[str, Any]
) -> Scalar | None:
    """What a user's own options, or paths of their file, say of a parameter; None if nothing."""
    places = ((setting.arguments, given), (setting.file, paths), (setting.same, {**paths, **given}))
    for entries, told in places:
        for key, template in entries.items():
            value = told.get(key)
            if value in (None, "auto") or isinstance(value, list):
                continue
            heeded = templates.names(f"{{{setting.when or ''}}}")
            if template == f"{{{name}}}" and (heeded <= {name} or name not in heeded):
                return _scalar(value)
            means = _IS.fullmatch(setting.when or "")
            if means and means["name"] == name and value == template:
                said: Scalar = plain_scalar(means["value"]) if means["value"] else True
                return said
    return None


def _where(condition: str | None, setting: Setting) -> Setting:
    """A setting where its parameter is active alone."""
    if condition is None or setting.environment:
        return setting
    when = condition if setting.when is None else f"({condition}) and ({setting.when})"
    return setting.model_copy(update={"when": when})


def _scalar(value: Any) -> Scalar | None:
    return value if isinstance(value, (bool, int, float, str)) else None


def _divisors(size: int) -> list[int]:
    """Of a global batch: the accumulations that it can be of."""
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return sorted({*small, *(size // d for d in small)})[:MOST_DIVISORS]


def names_of(setting: Setting) -> frozenset[str]:
    """Every name that a setting reads."""
    texts = [
        *config_files.texts(setting.arguments),
        *config_files.texts(setting.file),
        *setting.environment.values(),
        *(["{" + setting.when + "}"] if setting.when else []),
    ]
    return frozenset[str]().union(*(templates.names(text) for text in texts))


def _beginnings(keys: Collection[str]) -> set[str]:
    """Dotted keys, with every beginning of them."""
    parts = [key.split(".") for key in keys]
    return {".".join(each[: i + 1]) for each in parts for i in range(len(each))}


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted path."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{path}.")
        else:
            found[path] = value
    return found
