"""What a user's own arguments and configuration file say to a well-known trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from foundation.documents import Document, plain_scalar
from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import AdapterFile, Setting, WrittenFile
from search_spaces.language.fields import Scalar
from search_spaces.language.schema import ModelFile
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.rules.facts import DERIVED
from search_spaces.shipped import named
from search_spaces.trainers import config_files, model_keys, options, templates
from trainer.plan.model import ModelConfig

_IS = re.compile(r"(?P<name>\w+)(?: == '?(?P<value>[^']+?)'?)?")  # sequence_parallel; zero == 1


class Told:
    """The trainer's own words of one space.

    Args:
        document: the space, where mistakes are shown.
        spec: its trainer.
        adapter: that reads it.

    Raises:
        SpaceError: if the file is missing, or cannot be read.

    Attributes:
        file: content of the user's configuration file.
        paths: its values by dotted path.
        options: of the command line; those of the file, too, where they are the same.
        of_model: where the model is told, what is.
    """

    def __init__(self, document: Document, spec: TrainerSpec, adapter: AdapterFile) -> None:
        self.document, self.spec, self.adapter = document, spec, adapter
        self.file = self._read()
        self.paths = _flat(self.file)
        own = options.read(spec.args, adapter.options)
        written = adapter.file or WrittenFile(name="")
        self.options = {**self.paths, **own} if written.options else own
        self.of_model = self.options if adapter.model_in == "arguments" else self.paths
        if written.defaults:
            self.of_model = own

    @cached_property
    def keys(self) -> set[str]:
        """Every option and path that is said, with every beginning of a dotted one."""
        return _beginnings({*self.options, *self.paths})

    def parameters(self) -> dict[str, Scalar]:
        """Parameters that arguments or file set, a value each."""
        found = {}
        for name, settings in self.adapter.settings.items():
            if name in DERIVED:
                continue
            values = [_value(name, setting, self.options, self.paths) for setting in settings]
            given = [value for value in values if value is not None]
            if given:
                found[name] = given[0]
        return found

    def batch(self) -> int | None:
        """The global batch, in sequences."""
        for setting in self.adapter.settings.get("global_batch_size", []):
            size = _value("global_batch_size", setting, self.options, self.paths)
            if isinstance(size, int) and size > 0:
                return size
        return None

    def said(self, key: str) -> Any:
        """What an option is told, or else a path of the file; None if nothing."""
        return self.options.get(key, self.paths.get(key))

    def seq_length(self) -> int | None:
        """Tokens of a sequence."""
        own = self.adapter.model.get("seq_length")
        for key in [*self.adapter.sequence_length, *([own.key] if own else [])]:
            length = self.said(key)
            if isinstance(length, int) and length > 0:
                return length
        return None

    def model(self, model: ModelConfig | None) -> ModelConfig | None:
        """The model that is trained: the space's, or else what arguments or file say.

        Raises:
            SpaceError: if they say another one than the space.
        """
        keys = self.adapter.model
        path = ("trainer", "args" if self.adapter.model_in == "arguments" else "config")
        if model is None:
            try:
                known = self._known_model()
                told = {**self.of_model, **self.options}
                return model_keys.read(keys, told, known) if known is not False else None
            except SpaceError as error:
                raise self.document.error(path, str(error)) from None
        if problem := model_keys.contradiction(keys, self.of_model, model):
            raise self.document.error(path, f"found {problem}: leave one of them out")
        for key in self.adapter.sequence_length:
            length = self.said(key)
            if isinstance(length, int) and 0 < length != model.seq_length:
                raise self.document.error(
                    path,
                    f"found {key} {length}, the space's model has seq_length {model.seq_length}: "
                    f"write model: {{base: NAME, seq_length: {length}}}",
                )
        return model

    def _known_model(self) -> ModelConfig | Literal[False] | None:
        """The model that the trainer is told by its name; None if by its sizes, False if it is one
        that is not known here.
        """
        models = self.adapter.models
        if models is None:
            return None
        said = [self.said(key) for key in models.keys]
        record = models.names.get(
            " ".join(map(str, said)), "" if said == [None] * len(said) else None
        )
        if not record:
            return None if record == "" else False
        return named(ModelFile, ("model",), record, self.document).config()

    def _read(self) -> dict[str, Any]:
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


def _scalar(value: Any) -> Scalar | None:
    return value if isinstance(value, (bool, int, float, str)) else None


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
