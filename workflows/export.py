"""``meshtune export``: the best configuration as a well-known trainer's options and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import join, quote
from typing import Any

from analysis import Best, RunFolder, read_run
from foundation.quantities import config_text, counted
from foundation.writing import write_atomically
from search_spaces import AdapterFile, Export, SearchSpace, SpaceError, load_space, shipped_records
from trainer.plan.limits import ConfigError
from workflows import launch_script

ARGUMENTS, ENVIRONMENT = "arguments.txt", "environment.sh"


def of_best(source: Path, adapter: str | None, script: Path | None = None) -> tuple[Export, str]:
    """The best configuration of a run, or of its ``best.yaml``, for a trainer; and a title.

    The trainer is by default the run's own, or its command. A launch ``script`` shows its version.

    Raises:
        ConfigError: if no trial has succeeded.
        SpaceError: if there is no such trainer, or none whose version the script could show.
    """
    config, folder, how = _configuration(source)
    space = load_space(folder.space_file)
    try:
        nodes = counted(space.num_nodes(config), "node")
    except ValueError as error:
        raise SpaceError(f"{source}: {error}") from None
    what = f"{space.name}: {config_text(config)}; {nodes} of {space.ranks_per_node} ranks{how}"
    known = shipped_records("adapter")
    logged = space.trainer.result and space.trainer.result.format
    adapter = adapter or space.trainer.made_by or (logged if logged in known else None)
    if adapter is None and space.trainer.command:
        if script:
            raise SpaceError("--args goes with --to: the run's own command is exported as it is")
        return _as_it_ran(space, config), f"{what}; as a trial ran it"
    if adapter is None:
        names = ", ".join(sorted(known))
        raise SpaceError(f"--to missing: the run's own trainer has no record; name one of {names}")
    try:
        style = AdapterFile.named(adapter).options
        own = launch_script.read(script, style == "key=value").arguments if script else []
        return Export.of(space, config, adapter, own), what
    except SpaceError as error:
        raise SpaceError(f"--to: {error}") from None


def _configuration(source: Path) -> tuple[dict[str, Any], RunFolder, str]:
    """The best configuration, its run's folder, and a remark on the run for the title."""
    if source.is_dir():
        run = read_run(source)
        if run.best is None:
            raise ConfigError(f"{source}: {run.no_best}, so there is nothing to export")
        how = " of a simulated search" if run.launcher == "simulate" else ""
        return dict(run.best.config), RunFolder(source), how
    found = Best.parameters_in(source)
    if found is None:
        raise ConfigError(f"{source}: accepted a run's folder, or the best.yaml of its report")
    return found, RunFolder.holding(source), ""


def _as_it_ran(space: SearchSpace, config: Mapping[str, Any]) -> Export:
    """The command of the user's own trainer; the folder of a trial is written as "."."""
    trainer, container = space.trainer, space.trainer.container
    around = {"workdir": trainer.workdir, "container": container and container.image}
    around["{trial_dir}"] = "written as ." if "{trial_dir}" in str(trainer) else None
    left_out = tuple(f"{key}: {value}" for key, value in around.items() if value)
    command, files = space.command(config, ""), space.files(config, "")
    return Export((command,), files, space.environment(config, ""), left_out, whole=True)


def text(export: Export, what: str) -> Iterator[str]:
    """The export as lines for a screen or a script."""
    yield from (*_notes(export, what), *_environment(export))
    yield from (join(option) + " \\" * (not export.whole) for option in export.arguments)
    for name, content in export.files.items():
        yield f"# ---- {name}"
        yield content.rstrip()


def write(export: Export, what: str, out: Path) -> list[str]:
    """Write the export into a folder; returns the names of its files."""
    out.mkdir(parents=True, exist_ok=True)
    notes, files = _notes(export, what), dict(export.files)
    if export.arguments or not files:
        files[ARGUMENTS] = "\n".join([*notes, *map(join, export.arguments)]) + "\n"
    if export.environment:
        files[ENVIRONMENT] = "\n".join([*notes, *_environment(export)]) + "\n"
    for name, content in files.items():
        write_atomically(out / name, content)
    return sorted(files)


def _notes(export: Export, what: str) -> list[str]:
    return [f"# {what}", *(f"# not exported: {line}" for line in export.unmapped)]


def _environment(export: Export) -> Iterator[str]:
    return (f"export {name}={quote(value)}" for name, value in export.environment.items())
