"""A configuration as the options of a known trainer, whichever trainer it was found with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.language.adapter_schema import AdapterFile
from search_spaces.language.trainer_schema import ConfigFile
from search_spaces.space import SearchSpace
from search_spaces.trainers import config_files, model_keys, options, templates
from search_spaces.trainers.adapters import names_of


@dataclass(frozen=True)
class Export:
    """Options, files and environment of a known trainer for one configuration.

    Attributes:
        arguments: options of its command line, each with its values.
        files: text of its configuration files by name.
        environment: of every rank.
        unmapped: parameters that it has no option for, and why; a line each.
    """

    arguments: tuple[tuple[str, ...], ...]
    files: Mapping[str, str]
    environment: Mapping[str, str]
    unmapped: tuple[str, ...]


def exported(space: SearchSpace, config: Mapping[str, Any], adapter: str) -> Export:
    """A space's configuration for a well-known trainer.

    Args:
        space: that has the configuration; its model is written, too.
        config: canonical or raw.
        adapter: the trainer's name, or a file of an adapter.

    Raises:
        SpaceError: that begins with ``found``, if there is none.
    """
    record = AdapterFile.named(adapter)
    values = {name: v for name, v in space.facts(config).items() if _is_active(space, config, name)}
    told: dict[str, Any] = {}
    words: list[str] = []
    paths: dict[str, Any] = {}
    environment: dict[str, str] = {}
    unmapped: list[str] = []
    if space.model is not None:
        place = told if record.model_in == "arguments" else paths
        place |= model_keys.written(record.model, space.model, {})
        unmapped += [
            f"model.{name}: {getattr(space.model, name)}: {adapter} has no such key"
            for name in model_keys.unwritten(record.model, space.model)
        ]
    for setting in record.always:
        environment |= setting.environment
    said: set[str] = set()
    for name, settings in record.settings.items():
        lacking = {each for setting in settings for each in names_of(setting)} - values.keys()
        if name not in values or lacking:
            continue
        for setting in settings:
            said |= names_of(setting)
            if setting.when is None or templates.holds(setting.when, values):
                told |= setting.arguments
                words += setting.words
                paths |= setting.file
                environment |= setting.environment
    filled = {key: config_files.filled(value, values) for key, value in told.items()}
    argv = [options.written({key: value}, record.options) for key, value in filled.items()]
    return Export(
        arguments=tuple(tuple(each) for each in (*argv, words) if each),
        files=_files(record, paths, values),
        environment={k: templates.filled(text, values) for k, text in environment.items()},
        unmapped=(*unmapped, *_unmapped(space, config, record, said, values)),
    )


def _is_active(space: SearchSpace, config: Mapping[str, Any], name: str) -> bool:
    return name not in space.parameters or name in space.canonical(config)


def _files(
    record: AdapterFile, paths: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, str]:
    if record.file is None or not paths:
        return {}
    file = ConfigFile(set=dict(paths))
    return {record.file.name: config_files.rendered(record.file.name, file, values)}


def _unmapped(
    space: SearchSpace,
    config: Mapping[str, Any],
    record: AdapterFile,
    said: set[str],
    values: Mapping[str, Any],
) -> list[str]:
    """Parameters that the trainer has no setting for, and its constraints that are broken."""
    lines = []
    sources = frozenset[str]().union(*(space.reads.get(name, frozenset()) for name in said))
    for name, value in space.canonical(config).items():
        broken = [
            text
            for text in record.constraints.get(name, [])
            if templates.names("{" + text + "}") <= values.keys()
            and not templates.holds(text, values)
        ]
        if broken:
            lines.append(f"{name}: {value}: {record.name} demands {' and '.join(broken)}")
        elif name != "num_nodes" and name not in sources:
            lines.append(f"{name}: {value}: {record.name} has no such setting")
    return lines
