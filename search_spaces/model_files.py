"""Models: described in a space, or read from a file that it names."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from foundation.documents import Document
from search_spaces.errors import SpaceError
from search_spaces.huggingface.read import read_config
from search_spaces.language.schema import BasedModel, ModelFile
from search_spaces.shipped import read_named

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.json)(?<!\.yaml)(?<!\.yml)")


def model_of(given: ModelFile | BasedModel | str | None, document: Document) -> ModelFile | None:
    """The model that a space gives under its key ``model``.

    Raises SpaceError if there is no such model, or something is wrong with its file.
    """
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
    model = read_named(ModelFile, "model", downloaded(name), folder, read, others)
    return model if seq_length is None else model.model_copy(update={"seq_length": seq_length})


def downloaded(name: str) -> str:
    """The file of a model on the Hugging Face hub, in the local cache; other names stay.

    Nothing is downloaded.

    Raises SpaceError if the cache has no such model.
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


def assumed(given: ModelFile | BasedModel | str | None, model: ModelFile | None) -> str:
    """A note on the sequence length that is assumed where ``config.json`` states none; or empty."""
    base = given.base if isinstance(given, BasedModel) and given.seq_length is None else given
    if model is None or not isinstance(base, str) or not base.endswith(".json"):
        return ""
    return (
        f"sequences of {model.seq_length:,} tokens are assumed, of which {base} says nothing; "
        f"as model, {{base: {base}, seq_length: N}} sets them"
    )
