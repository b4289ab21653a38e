"""Loading a space file: names resolved, every expression checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.documents import document_of, read_document
from foundation.messages import nearest
from foundation.records import validate
from search_spaces.builder import Builder
from search_spaces.cluster import Cluster
from search_spaces.errors import SpaceError
from search_spaces.language.schema import SpaceFile
from search_spaces.model_files import model_of
from search_spaces.shipped import named, shipped_files
from search_spaces.space import SearchSpace


def load_space(
    reference: str | Path | Mapping[str, Any], *, frozen: bool = False, cluster: str | None = None
) -> SearchSpace:
    """Load a space from a YAML file, from its content, or a shipped one by its name.

    Args:
        frozen: the space of a run, which can be read where its trainer's folder does not exist.
        cluster: in place of the space's own: a shipped one, or a file.

    Raises SpaceError with a complete message, for anything that is wrong with the input.
    """
    if isinstance(reference, Mapping):
        document = document_of(reference, str(reference.get("name", "space")), SpaceError)
    else:
        document = read_document(_file(reference), SpaceError)
    file = validate(SpaceFile, document)
    model, own = model_of(file.model, document), file.cluster
    if cluster is not None:
        try:
            own = Cluster.named(cluster)
        except SpaceError as error:
            raise SpaceError(f"cluster: {error}") from None
    elif isinstance(own, str):
        own = named(Cluster, ("cluster",), own, document)
    builder = Builder(document, file, model, own, frozen)
    # A space's name is that of folders and jobs, too.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(document.name).stem).lstrip("._-")
    return builder.build(file.name or plain or "space")


def _file(reference: str | Path) -> Path:
    text = str(reference)
    path = Path(text)
    shipped = shipped_files("space")
    if re.fullmatch(r"[\w-]{1,100}", text) and not path.is_file():
        if text in shipped:
            return shipped[text]
        if not path.exists():
            raise SpaceError(
                f"{text}: neither a file nor a shipped space, accepted: a YAML file, or one of "
                f"{', '.join(shipped)}{nearest(text, shipped)}"
            )
    with suppress(OSError):  # an unreadable file fails when it is read
        if (frozen := path / "space.yaml").is_file():
            raise SpaceError(
                f"{path}: found a directory, accepted a file; this run's space is {frozen}"
            )
    return path
