"""Models: described in a space, or read from a file that it names."""

from __future__ import annotations

from functools import partial

from foundation.documents import Document
from search_spaces.huggingface.read import read_config
from search_spaces.language.schema import BasedModel, ModelFile
from search_spaces.shipped import named, read_named


def model_of(given: ModelFile | BasedModel | str | None, document: Document) -> ModelFile | None:
    """The model that a space gives under its key ``model``.

    Raises:
        SpaceError: if there is no such model, or something is wrong with its file.
    """
    if given is None or isinstance(given, ModelFile):
        return given
    based = BasedModel(base=given) if isinstance(given, str) else given
    read = partial(read_config, seq_length=based.seq_length)
    return _long(named(ModelFile, ("model",), based.base, document, read), based.seq_length)


def read_model(name: str, seq_length: int | None = None) -> ModelFile:
    """A shipped model by its name, or that of a file (``*.yaml``, ``config.json``).

    Args:
        name: of either.
        seq_length: tokens of a training sequence; default the model's own.

    Raises:
        SpaceError: that begins with ``found``.
    """
    read = partial(read_config, seq_length=seq_length)
    return _long(read_named(ModelFile, "model", name, read_json=read), seq_length)


def _long(model: ModelFile, seq_length: int | None) -> ModelFile:
    return model if seq_length is None else model.model_copy(update={"seq_length": seq_length})


def assumed(given: ModelFile | BasedModel | str | None, model: ModelFile | None) -> str:
    """A note on the sequence length that is assumed where ``config.json`` states none; or empty."""
    base = given.base if isinstance(given, BasedModel) and given.seq_length is None else given
    if model is None or not isinstance(base, str) or not base.endswith(".json"):
        return ""
    return (
        f"sequences of {model.seq_length:,} tokens are assumed, of which {base} says nothing; "
        f"as model, {{base: {base}, seq_length: N}} sets them"
    )
