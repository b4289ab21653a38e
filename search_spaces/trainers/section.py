"""A space's ``trainer`` section: completed, then its templates, paths and patterns checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from foundation.documents import Document, Where, as_written
from foundation.messages import nearest
from search_spaces import parameters
from search_spaces.errors import SpaceError
from search_spaces.known import log_format
from search_spaces.language.schema import SpaceFile
from search_spaces.language.trainer_schema import Flags, TrainerSpec
from search_spaces.trainers import config_files, templates
from search_spaces.trainers.command import TRIAL_PLACEHOLDERS
from slurm.logs.quantities import QuantityError, check_unit
from trainer.plan.axes.mesh import GRID
from trainer.plan.rules.expression import Expression, ExpressionError, ValueType, parse


def parsed(
    document: Document,
    text: str,
    path: Where,
    types: Mapping[str, ValueType],
    *,
    any_type: bool = False,
) -> Expression:
    """An expression of a space file; raises SpaceError at its ``path`` if it is none."""
    with document.errors_at(path, ExpressionError):
        return parse(text, types, any_type=any_type)


def completed(document: Document, file: SpaceFile, *, there: bool) -> SpaceFile:
    """The file with a trainer that has all axes, and needs no other file and no current folder.

    Raises SpaceError if its folder or an image beside the space must be ``there`` and is not.
    """
    file = _with_workdir(document, _with_known_axes(file), there=there)
    return _with_files(document, _with_image(document, file, there=there))


def _with_trainer(file: SpaceFile, **changes: Any) -> SpaceFile:
    return file.model_copy(update={"trainer": file.trainer.model_copy(update=changes)})


def _with_known_axes(file: SpaceFile) -> SpaceFile:
    """The file with all parameters that are parallel axes listed among its trainer's axes.

    One axis of the built-in trainer's grid brings in the others.
    """
    spec = file.trainer
    if spec.command is None and spec.builtin is None:
        return file
    more = [name for name in parameters.AXES if name in file.parameters and name not in spec.axes]
    if spec.builtin is not None and not file.parameters.keys().isdisjoint(GRID):
        more = [*GRID, *more]
    return _with_trainer(file, axes=[*spec.axes, *more]) if more else file


def _with_files(document: Document, file: SpaceFile) -> SpaceFile:
    """The file with the content of its trainer's base files, so that it needs no other file.

    A script beside it is named by its whole path: trials start in folders of their own.
    """
    folder, workdir = Path(document.name).parent.absolute(), file.trainer.workdir
    command = [_beside(folder, entry, workdir) for entry in file.trainer.command or []]
    if command != (file.trainer.command or []):
        file = _with_trainer(file, command=command)
    whole = {}
    for name, each in file.trainer.files.items():
        if each.base is not None:
            path = ("trainer", "files", name, "base")
            content = config_files.read_base(document, path, each.base)
            each = each.model_copy(update={"base": None, "content": content})
        whole[name] = each
    return _with_trainer(file, files=whole) if whole else file


def _beside(folder: Path, entry: str | Flags, workdir: str | None) -> str | Flags:
    if not isinstance(entry, str) or not entry.endswith((".py", ".sh")):
        return entry
    found = workdir is not None and (Path(workdir) / entry).is_file()
    return str(folder / entry) if not found and (folder / entry).is_file() else entry


def _with_workdir(document: Document, file: SpaceFile, *, there: bool) -> SpaceFile:
    """The file with the absolute path of its trainer's working folder."""
    if file.trainer.workdir is None:
        return file
    folder = Path(os.path.abspath(Path(document.name).parent / file.trainer.workdir))  # noqa: PTH100
    in_image = file.trainer.container is not None and Path(file.trainer.workdir).is_absolute()
    if there and not (in_image or folder.is_dir()):
        raise document.wrong(
            ("trainer", "workdir"),
            f"found {as_written(file.trainer.workdir)}, accepted a folder; there is no {folder}",
        )
    return _with_trainer(file, workdir=str(folder))


def _with_image(document: Document, file: SpaceFile, *, there: bool) -> SpaceFile:
    """The file with the absolute path of its container's image, if that is a file."""
    container = file.trainer.container
    if container is None or container.file is None or container.file.is_absolute():
        return file
    image = Path(os.path.abspath(Path(document.name).parent / container.file))  # noqa: PTH100
    if there and not image.is_file():
        raise document.error(
            ("trainer", "container"),
            f"found the image {as_written(container.image)}, accepted a file or a name in a "
            f"registry; there is no {image}",
        )
    whole = container.model_copy(update={"image": str(image)})
    return _with_trainer(file, container=whole)


def check_trainer(document: Document, spec: TrainerSpec, types: Mapping[str, ValueType]) -> None:
    """Check a command, its files and its patterns; raises SpaceError for the first mistake."""
    checks = _Checks(document, spec, types)
    checks.command()
    checks.config_files()
    checks.patterns()
    for name, text in spec.env.items():
        checks.template(text, ("trainer", "env", name))


_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "composer"),
    *("accelerate.commands.launch", "mpirun", "mpiexec", "srun", "horovodrun"),
)
_IN_SHELL = re.compile(rf"(?:^|[\s;&|/])({'|'.join(map(re.escape, _LAUNCHERS))})\s")


def check_launcher(document: Document, spec: TrainerSpec, ranks_per_node: int, nodes: int) -> None:
    """Refuse a command that launches ranks itself where every rank runs it.

    With one process per node ``torchrun --nnodes`` may start the node's ranks. ``nodes``: the most
    that a trial has.

    Raises SpaceError if each of the ranks would start a training of its own.
    """
    launcher = _launcher(spec.words)
    alone = launcher is not None and "--standalone" in spec.words and nodes > 1
    if launcher is None or (ranks_per_node == 1 and not alone):
        return
    where = f"{ranks_per_node} on each node" if ranks_per_node > 1 else f"on each of {nodes} nodes"
    raise document.wrong(
        ("trainer", "command"),
        f"found {launcher}, but every rank runs the command, {where}, and would start a training "
        "of its own: leave it out, as in [python, train.py]; each rank has RANK, WORLD_SIZE and "
        "the other variables of torchrun",
    )


def _launcher(words: list[str]) -> str | None:
    """The launcher, such as torchrun, that a command starts directly or through a wrapper."""
    if words[:1] and Path(words[0]).name in ("bash", "sh") and "-c" in words[1:3]:
        found = _IN_SHELL.search(words[min(words.index("-c") + 1, len(words) - 1)])
        return found[1] if found else None
    for before, word in pairwise(["", *words]):
        name = Path(word).name
        if name == "launch" and Path(before).name == "accelerate":
            return "accelerate launch"
        if name in _LAUNCHERS and not before.startswith("--"):
            return name
        if word.endswith(".py") or (before == "-m" and name != "accelerate"):
            return None  # the trainer's own arguments follow
    return None


class _Checks:
    def __init__(
        self, document: Document, spec: TrainerSpec, types: Mapping[str, ValueType]
    ) -> None:
        self.document, self.spec = document, spec
        self.known: dict[str, ValueType] = {**types, **TRIAL_PLACEHOLDERS}

    def command(self) -> None:
        for index, entry in enumerate(self.spec.command or []):
            path: tuple[str | int, ...] = ("trainer", "command", index)
            if isinstance(entry, Flags):
                parsed(self.document, entry.when, (*path, "when"), self.known)
                for place, text in enumerate(entry.args):
                    self.template(text, (*path, "args", place))
            else:
                self.template(entry, path)

    def config_files(self) -> None:
        for name, file in self.spec.files.items():
            path = ("trainer", "files", name)
            if problem := config_files.wrong_file_name(name):
                raise self.document.error(path, f"found {as_written(name)}, {problem}")
            try:
                config_files.check_paths(name, file)
            except SpaceError as error:
                raise self.document.error((*path, "set"), str(error)) from None
            self._set(file.set, (*path, "set"))
            for index, case in enumerate(file.cases):
                parsed(self.document, case.when, (*path, "cases", index, "when"), self.known)
                self._set(case.set, (*path, "cases", index, "set"))

    def _set(self, entries: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        for key, value in entries.items():
            for text in config_files.texts(value):
                self.template(text, (*path, key))

    def template(self, text: str, path: tuple[str | int, ...]) -> None:
        for expression in templates.expressions(text):
            name = expression.strip()
            if name.isidentifier() and name not in self.known:
                said = "*" * (f"{{*{expression}}}" in text) + name
                raise self.document.wrong(
                    path,
                    f"unknown placeholder {{{said}}}, accepted: parameters, facts and "
                    f"{', '.join(TRIAL_PLACEHOLDERS)}; braces themselves are written "
                    f"{{{{{said}}}}}{nearest(name, self.known)}",
                )
            parsed(self.document, expression, path, self.known, any_type=True)

    def patterns(self) -> None:
        result = self.spec.result
        if result is None:
            return
        for key, patterns in log_format(result).patterns.items():
            path = ("trainer", "result", "patterns", key)
            for pattern in patterns:
                if self._regex(pattern.regex, path).groups == 0:
                    raise self.document.wrong(
                        path,
                        f"found {as_written(pattern.regex)}, accepted a regular expression with "
                        "the number in a group: (...)",
                    )
                if pattern.unit:
                    with self.document.errors_at(path, QuantityError):
                        check_unit(pattern.unit, key)
                groups = self._regex(pattern.whole, path).groupindex
                if pattern.whole and not {"rate", "seconds"} <= groups.keys():
                    problem = f"whole of {key!r}: needs groups rate and seconds"
                    raise self.document.wrong(path, problem)
        if result.pauses is not None:
            self._regex(result.pauses, ("trainer", "result", "pauses"))

    def _regex(self, regex: str, path: Where) -> re.Pattern[str]:
        """A compiled regular expression; raises if it is none."""
        try:
            return re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            raise self.document.wrong(
                path, f"found {as_written(regex)}, accepted a regular expression ({error})"
            ) from None
