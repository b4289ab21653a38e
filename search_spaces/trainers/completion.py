"""The complete ``trainer`` section of a space: all axes, absolute paths, contents of base files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from foundation.documents import Document, as_written
from search_spaces import parameters
from search_spaces.language.schema import SpaceFile
from search_spaces.language.trainer_schema import Flags
from search_spaces.trainers import config_files
from trainer.plan.axes.mesh import GRID


def completed(document: Document, file: SpaceFile, *, there: bool) -> SpaceFile:
    """The file with a trainer that needs no other file and no current folder.

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
