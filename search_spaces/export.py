"""A configuration as the options of a known trainer, whichever trainer it was found with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.language.adapter_schema import AdapterFile, Setting
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

    @classmethod
    def of(cls, space: SearchSpace, config: Mapping[str, Any], adapter: str) -> Export:
        """A configuration of a space in the options of a known trainer.

        Args:
            space: that has the configuration; its model is written, too.
            config: canonical or raw.
            adapter: the trainer's name, or a file of an adapter.

        Raises:
            SpaceError: that begins with ``found``, if there is none.
        """
        record = AdapterFile.named(adapter)
        own = space.canonical(config)
        inactive = space.parameters.keys() - own.keys()
        values = {name: v for name, v in space.facts(config).items() if name not in inactive}
        known = [*_known_settings(record, values)]
        chosen = [s for s in known if s.when is None or templates.holds(s.when, values)]
        arguments = {key: value for setting in chosen for key, value in setting.arguments.items()}
        paths = {key: value for setting in chosen for key, value in setting.file.items()}
        environment = {
            key: templates.filled(text, values)
            for setting in (*record.always, *chosen)
            for key, text in setting.environment.items()
        }
        unmapped: list[str] = []
        if space.model is not None:
            model = model_keys.written(record.model, space.model, {})
            if record.model_in == "arguments":
                arguments = model | arguments
            else:
                paths = model | paths
            unmapped += [
                f"model.{name}: {getattr(space.model, name)}: {adapter} has no such key"
                for name in model_keys.unwritten(record.model, space.model)
            ]
        filled = {key: config_files.filled(value, values) for key, value in arguments.items()}
        argv = [options.written({key: value}, record.options) for key, value in filled.items()]
        argv.append([word for setting in chosen for word in setting.words])
        files = {}
        if record.file is not None and paths:
            file = ConfigFile(set=dict(paths))
            files = {record.file.name: config_files.rendered(record.file.name, file, values)}
        read = frozenset[str]().union(*(names_of(setting) for setting in known))
        return cls(
            arguments=tuple(tuple(each) for each in argv if each),
            files=files,
            environment=environment,
            unmapped=(*unmapped, *_unmapped(space, own, record, read, values)),
        )


def _known_settings(record: AdapterFile, values: Mapping[str, Any]) -> Iterator[Setting]:
    """Settings of the parameters and facts that have a value, if all names they read have one."""
    for name, settings in record.settings.items():
        lacking = {each for setting in settings for each in names_of(setting)} - values.keys()
        if name in values and not lacking:
            yield from settings


def _unmapped(
    space: SearchSpace,
    own: Mapping[str, Any],
    record: AdapterFile,
    read: frozenset[str],
    values: Mapping[str, Any],
) -> list[str]:
    """Parameters that the trainer has no setting for, and its constraints that are broken."""
    lines = []
    sources = frozenset[str]().union(*(space.reads.get(name, frozenset()) for name in read))
    for name, value in own.items():
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
