"""Options that a user's arguments and configuration file state for a known trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

from foundation.documents import Document, by_dotted_path, document_of, plain_scalar
from foundation.values import Scalar
from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import AdapterFile, Setting, WrittenFile
from search_spaces.language.schema import ModelFile
from search_spaces.language.trainer_schema import Flags, TrainerSpec
from search_spaces.rules.facts import DERIVED
from search_spaces.shipped import named
from search_spaces.trainers import config_files, model_keys, options, templates
from trainer.plan.model import ModelConfig

_TOKENS = "{global_batch_size * seq_length}"
_IS = re.compile(r"(?P<name>\w+)(?: == '?(?P<value>[^']+?)'?)?")  # sequence_parallel; zero == 1


class StatedOptions:
    """Options that a user states for a known trainer, on its command line and in its file.

    Raises SpaceError if the file is missing or cannot be read.

    Attributes:
        file: content of the user's configuration file.
        paths: its values by dotted path.
        options: of the command line; also those of the file, where both take the same ones.
        of_model: the options among these that describe the model.
    """

    def __init__(self, document: Document, spec: TrainerSpec, adapter: AdapterFile) -> None:
        self.document, self.spec, self.adapter = document, spec, adapter
        self.file = self._read()
        self.paths = by_dotted_path(self.file)
        own = options.read(spec.args, adapter.options)
        written = adapter.file or WrittenFile(name="")
        self.options = {**self.paths, **own} if written.options else own
        self.of_model = self.options if adapter.model_in == "arguments" else self.paths
        if written.defaults:
            self.of_model = own
        self.adapter = adapter.in_version(self.keys)

    @classmethod
    def of(cls, trainer: Mapping[str, Any]) -> StatedOptions:
        """The options of a space's trainer, given as ``{adapter: ..., args: ..., config: ...}``.

        Raises SpaceError if there is no such adapter, or its file cannot be read.
        """
        document = document_of({"trainer": dict(trainer)}, "space", SpaceError)
        return cls(document, TrainerSpec(**trainer), AdapterFile.named(trainer["adapter"]))

    @staticmethod
    def in_arguments(adapter: AdapterFile, arguments: Sequence[str | Flags]) -> set[str]:
        """Options that arguments alone state, with the prefixes of dotted ones."""
        return _prefixes(options.read(arguments, adapter.options))

    @classmethod
    def of_command(cls, adapter: AdapterFile, spec: TrainerSpec) -> set[str]:
        """Options and paths that a command states; none if it was made by another adapter."""
        usual = {adapter.name, adapter.log} if isinstance(adapter.log, str) else {adapter.name}
        if spec.result is None or spec.result.format not in usual:
            return set()
        paths = {
            path for file in spec.files.values() for path in by_dotted_path(file.content or {})
        }
        words = [word for word in spec.command or () if isinstance(word, str)]
        return cls.in_arguments(adapter, words) | _prefixes(paths)

    @staticmethod
    def implied(adapter: AdapterFile, arguments: Sequence[str]) -> dict[str, Scalar]:
        """Options of the model that arguments lack and that other options of theirs imply."""
        stated = options.read(arguments, adapter.options)
        keys = (key for key in adapter.model.values() if key.key not in stated)
        found = {key.key: model_keys.implied(key, stated) for key in keys}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def entry(self) -> str:
        """The script or recipe that is started; empty where none is known."""
        usual = [
            entry
            for key, entries in self.adapter.entries.items()
            for pattern, entry in entries.items()
            if (value := self.value(key)) is not None and re.fullmatch(pattern, str(value))
        ]
        return self.spec.entry or next(iter(usual), self.adapter.entry)

    @property
    def further(self) -> dict[str, Any]:
        """Values, by dotted path, of the files that the user's own file names."""
        named = self.adapter.file.named if self.adapter.file else []
        files = [self.file[key] for key in named if isinstance(self.file.get(key), dict)]
        return {path: value for each in files for path, value in by_dotted_path(each).items()}

    @cached_property
    def keys(self) -> set[str]:
        """Every option and path that has a value, and each prefix of a dotted one."""
        stated = {**self.paths, **self.options}
        return _prefixes([key for key, value in stated.items() if value is not None])

    def parameters(self) -> dict[str, Scalar]:
        """The value of each parameter of a space that an option states."""
        found = {}
        for name, settings in self.adapter.settings.items():
            if name in DERIVED:
                continue
            values = [_value(name, setting, self.options, self.paths) for setting in settings]
            given = [value for value in values if value is not None]
            if given:
                found[name] = given[0]
        # The name of a recipe or a model's builder may state it: lora_finetune_distributed.
        recipe = f"{self.entry} {self.value('model._component_')}"
        words = re.findall(r"(?<![a-z])q?lora(?![a-z])", recipe)  # not of exploration/train.py
        if words and "tuning" in self.adapter.settings and "tuning" not in found:
            found["tuning"] = max(words, key=len)
        return found

    def batch(self, seq_length: int | None = None) -> int | None:
        """Sequences of a step by its option, or None; raises SpaceError if its tokens split one."""
        length = self.seq_length() or seq_length
        for setting in self.adapter.settings.get("global_batch_size", []):
            size = _value("global_batch_size", setting, self.options, self.paths)
            for key in (k for k, text in setting.arguments.items() if text == _TOKENS):
                if length and isinstance(tokens := self.options.get(key), int):
                    size = tokens // length
                    if tokens % length:
                        near = max(round(tokens / length), 1) * length
                        wrong = f"found {key} {tokens}, accepted multiples of seq_length {length}"
                        wrong += f", such as {near}"
                        raise self.document.error(("trainer", "args"), wrong)
            if isinstance(size, int) and size > 0:
                return size
        return None

    def batch_on(self, ranks: int) -> int | None:
        """Sequences of a step on so many ranks (0: unknown); None where they do not follow."""
        rule = self.adapter.batch
        if (stated := self.batch()) is not None or rule is None:
            return stated
        first, *more = (self.value(key) for key in rule.of)
        degrees = self.parameters()
        split = prod(int(degrees.get(name, 1)) for name in ("tp", "pp", "cp"))
        replicas = ranks // split if split and ranks % split == 0 else 0  # 0: not divided
        times = {None: 1.0, "ranks": ranks, "replicas": replicas}[rule.times]
        sizes = [first, times, *(1 if each is None else each for each in more)]
        numbers = [each for each in sizes if isinstance(each, (int, float)) and each > 0]
        size = prod(numbers)
        return int(size) if len(numbers) == len(sizes) and size == int(size) else None

    def value(self, key: str) -> Any:
        """The value of an option, or else of a path of the file; None if neither is stated."""
        return self.options.get(key, self.paths.get(key))

    def seq_length(self) -> int | None:
        """Tokens of a sequence; None where no option states them."""
        own = self.adapter.model.get("seq_length")
        for key in [*self.adapter.sequence_length, *([own.key] if own else [])]:
            length = self.value(key)
            if isinstance(length, int) and length > 0:
                return length
        return None

    def model(self, model: ModelConfig | None) -> ModelConfig | None:
        """The model that is trained: the space's, or else the one that the options describe.

        Raises SpaceError if they describe another one than the space.
        """
        sizes = self.adapter.model
        for key, plain in self.adapter.unmodelled.items():
            if (value := self.of_model.get(key, plain)) not in (plain, None):
                wrong = f"found {key} {value}, accepted {plain}: the record of {self.adapter.name}"
                raise self.document.error(
                    ("trainer",), f"{wrong} has no such models: write its trainer.command"
                )
        path = ("trainer", "args" if self.adapter.model_in == "arguments" else "config")
        if model is None:
            try:
                known = self._model_by_name()
                stated = {**self.of_model, **self.options}
                return model_keys.read(sizes, stated, known) if known is not False else None
            except SpaceError as error:
                raise self.document.error(path, str(error)) from None
        problem, own = model_keys.contradiction(sizes, self.of_model, model), self._model_by_name()
        if own and not problem and own.hidden_size != model.hidden_size:  # of a probe not the depth
            keys = self.adapter.models.keys if self.adapter.models else ()
            named_by = ", ".join(key for key in keys if self.value(key) is not None)
            widths = f"hidden_size {own.hidden_size}, the space's model has {model.hidden_size}"
            problem = f"{named_by} of a model with {widths}"
        if problem:
            raise self.document.error(path, f"found {problem}: leave one of them out")
        for key in self.adapter.sequence_length:
            length = self.value(key)
            if isinstance(length, int) and 0 < length != model.seq_length:
                raise self.document.error(
                    path,
                    f"found {key} {length}, the space's model has seq_length {model.seq_length}: "
                    f"write model: {{base: NAME, seq_length: {length}}}",
                )
        return model

    def _model_by_name(self) -> ModelConfig | Literal[False] | None:
        """The model whose name the options state.

        None: they state no name, or one whose sizes count. False: the name is not known here.
        """
        models = self.adapter.models
        if models is None:
            return None
        names = [str(name) for key in models.keys if (name := self.value(key)) is not None]
        record = models.names.get(" ".join(names), None if names else "")
        if not record:
            return None if record == "" else False
        return named(ModelFile, ("model",), record, self.document).config()

    def _read(self) -> dict[str, Any]:
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
        suffixes = [Path(name).suffix for name in (file.name, self.spec.config)]
        if suffixes[0] == ".json" != suffixes[1]:
            wrong = f"found {self.spec.config}, accepted a *.json file, such as {file.name}"
            raise self.document.error(path, f"{wrong}: options of {self.adapter.name} are its args")
        base = config_files.read_base(self.document, path, self.spec.config)
        if file.underscores:
            base = {key.replace("-", "_"): value for key, value in base.items()}
        for key in base.keys() & {*file.named}:
            base[key] = self._further(base[key])
        return base

    def _further(self, named: Any) -> Any:
        """The content of a file by its name, as seen from a folder above the user's own file.

        The name itself where there is no such file.
        """
        own = (Path(self.document.name).parent / str(self.spec.config)).absolute()
        folders = [self.spec.workdir or own.parent, *own.parents]
        paths = [Path(folder, named) for folder in folders] if isinstance(named, str) else []
        found = next((path for path in paths if path.is_file()), None)
        if found is None:
            return named
        return config_files.read_base(self.document, ("trainer", "config"), str(found))


def _value(
    name: str, setting: Setting, given: Mapping[str, Any], paths: Mapping[str, Any]
) -> Scalar | None:
    """The value of a parameter that options, or paths of a file, state; None if none does.

    Of several options with fixed values, the first says that the setting is meant: the others go
    with it, and are stated for other reasons, too. Each option of ``same`` says so.
    """
    means = _IS.fullmatch(setting.when or "")
    heeded = templates.condition_names(setting.when or "")
    places = ((setting.arguments, given), (setting.file, paths), (setting.same, {**paths, **given}))
    for entries, stated in places:
        fixed = [key for key, template in entries.items() if not _heeds(template)]
        telling = fixed if entries is setting.same else fixed[:1]
        for key, template in entries.items():
            value, plain = stated.get(key), f"{{{name}}}"
            if template in (f"{{*{name}}}", f"[{{*{name}}}]"):
                words = value if isinstance(value, list) else re.findall(r"[^][,\s]+", str(value))
                value, plain = ",".join(map(str, words)) if value else None, template
            if value in (None, "auto") or (
                isinstance(value, list) and not isinstance(template, list)
            ):
                continue
            if template == plain and (heeded <= {name} or name not in heeded):
                return value if isinstance(value, (bool, int, float, str)) else None
            if key in telling and means and means["name"] == name and value == template:
                meant: Scalar = plain_scalar(means["value"]) if means["value"] else True
                return meant
    return None


def _heeds(template: Any) -> bool:
    """Whether a value depends on the configuration."""
    return isinstance(template, str) and bool(templates.names(template))


def _prefixes(keys: Collection[str]) -> set[str]:
    """Dotted keys and all their prefixes."""
    parts = [key.split(".") for key in keys]
    return {".".join(each[: i + 1]) for each in parts for i in range(len(each))}
