"""Loading a space file, and the model that it names: names resolved, every expression checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from foundation.documents import Document, document_of, read_document
from foundation.messages import nearest
from foundation.records import validate
from search_spaces.builder import Builder
from search_spaces.cluster import FROZEN, Cluster
from search_spaces.errors import SpaceError
from search_spaces.huggingface.read import read_config
from search_spaces.language.schema import BasedModel, ModelFile, SpaceFile
from search_spaces.shipped import named, read_named, shipped_files
from search_spaces.space import SearchSpace

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.json)(?<!\.yaml)(?<!\.yml)")


def load_space(
    reference: str | Path | Mapping[str, Any], *, frozen: bool = False, cluster: str | None = None
) -> SearchSpace:
    """Load a space from a YAML file, from its content, or a shipped one by its name.

    Args:
        frozen: the space of a run, which can be read even if its trainer's folder does not exist.
        cluster: in place of the space's own: a shipped one, or a file.

    Raises SpaceError with a complete message, for anything that is wrong with the input.
    """
    if isinstance(reference, Mapping):
        document = document_of(reference, str(reference.get("name", "space")), SpaceError)
    else:
        document = read_document(_file(reference), SpaceError)
    file = validate(SpaceFile, document, FROZEN if frozen else None)
    model, own = _model_of(file.model, document), file.cluster
    if cluster is not None:
        try:
            own = Cluster.named(cluster)
        except SpaceError as error:
            raise SpaceError(f"cluster: {error}") from None
    elif isinstance(own, str):
        own = named(Cluster, ("cluster",), own, document)
    builder = Builder(document, file, model, own, frozen)
    # Folders and jobs are named after the space, too.
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


def _model_of(given: ModelFile | BasedModel | str | None, document: Document) -> ModelFile | None:
    """The model under a space's key ``model``; raises SpaceError if it or its file is wrong."""
    if given is None or isinstance(given, ModelFile):
        return given
    based = BasedModel(base=given) if isinstance(given, str) else given
    with document.errors_at(("model",)):
        return read_model(based.base, based.seq_length, Path(document.name).parent, "a record, ")


def read_model(
    name: str, seq_length: int | None = None, folder: Path = Path(), others: str = ""
) -> ModelFile:
    """A shipped model by its name, or that of a file (``*.yaml``, ``config.json``).

    ``seq_length`` are tokens of a training sequence; default the model's own. Other arguments and
    errors are those of ``read_named``.
    """
    read = partial(read_config, seq_length=seq_length)
    model = read_named(ModelFile, "model", _downloaded(name), folder, read, others)
    return model if seq_length is None else model.model_copy(update={"seq_length": seq_length})


def _downloaded(name: str) -> str:
    """The locally cached file of a model on the Hugging Face hub; other names are unchanged.

    Nothing is downloaded. Raises SpaceError if the cache has no such model.
    """
    if not _HUB_NAME.fullmatch(name) or Path(name).exists():
        return name
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{name.replace('/', '--')}"
    found = sorted(folder.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise SpaceError(
            f"found {name}, which {cache} does not have: name a config.json, or run "
            f"`hf download {name} config.json` once"
        )
    return str(found[-1])
