"""Records that a space names: those that come with meshtune, or a file beside the space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from search_spaces.errors import SpaceError
from slurm import Document, Where, as_written, read_document, validate
from trainer import nearest

SHIPPED = Path(__file__).parent
Record = TypeVar("Record", bound=BaseModel)


def named(
    record: type[Record],
    path: Where,
    value: str,
    document: Document,
    read_json: Callable[[Path], Record] | None = None,
) -> Record:
    """The record of a model, a cluster or an adapter by its shipped name, or by file.

    Args:
        record: its type.
        path: of the key that names it; its last part says where the shipped ones are.
        value: the name, or a file (``*.yaml``) beside the document.
        document: where a mistake is shown.
        read_json: reads a file ``*.json``, which is accepted, too.

    Raises:
        SpaceError: if there is none of that name, or something is wrong with the file.
    """
    folder = SHIPPED / f"{path[-1]}s"
    endings = (".yaml", ".yml", *((".json",) if read_json else ()))
    if value.endswith(endings):
        file = Path(document.name).parent / value
    else:
        files = "*.yaml or *.json" if read_json else "*.yaml"
        names = sorted(each.stem for each in folder.glob("*.yaml"))
        if value not in names:
            raise document.error(
                path,
                f"found {as_written(value)}, accepted a file ({files}), a record, or one of "
                f"{', '.join(names)}{nearest(value, names)}",
                at_value=True,
            )
        file = folder / f"{value}.yaml"
    try:
        if read_json is not None and file.suffix == ".json":
            return read_json(file)
        return validate(record, read_document(file, SpaceError))
    except SpaceError as error:
        raise document.error(path, f"found {as_written(value)}:\n{error}", at_value=True) from None
