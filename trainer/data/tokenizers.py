"""Tokenizers beside bytes: those of the packages ``tokenizers`` and ``transformers``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.plan.limits import ConfigError

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")


@dataclass(frozen=True)
class Tokenizer:
    """A conversion of text to tokens."""

    encode: Callable[[str], list[int]]  # without tokens that mark a beginning or an end
    end: int  # ends a document
    vocab_size: int  # tokens are below it


def tokenizer_named(name: str) -> Tokenizer:
    """A ``tokenizer.json``, or what ``transformers`` knows: a folder, or a name of its hub.

    Raises:
        ConfigError: if there is no such tokenizer, or the package that reads it is not installed.
    """
    if Path(name).is_file():
        return _of_file(name)
    module = _package("transformers", name)
    try:
        found = module.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of many kinds: the network's, the hub's, the file's
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"tokenizer {name!r}: transformers finds none: {said}") from error
    if found.eos_token_id is None:
        raise ConfigError(f"tokenizer {name!r} has no eos_token, which ends a document")
    return Tokenizer(
        lambda text: list(found.encode(text, add_special_tokens=False)),
        int(found.eos_token_id),
        len(found),
    )


def _of_file(name: str) -> Tokenizer:
    module = _package("tokenizers", name)
    try:
        found = module.Tokenizer.from_file(name)
    except Exception as error:  # it raises Exception itself
        raise ConfigError(f"tokenizer {name!r}: not a tokenizer.json: {error}") from error
    ends = [end for text in _ENDS if (end := found.token_to_id(text)) is not None]
    if not ends:
        raise ConfigError(
            f"tokenizer {name!r} has none of {', '.join(_ENDS)} to end a document; name a folder "
            "for transformers, whose tokenizer_config.json says its eos_token"
        )
    return Tokenizer(
        lambda text: list(found.encode(text, add_special_tokens=False).ids),
        int(ends[0]),
        int(found.get_vocab_size()),
    )


def _package(name: str, tokenizer: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"tokenizer {tokenizer!r}: no such file, and the package {name} is not installed; "
            f"`bytes` needs none, else pip install {name}"
            if name == "transformers"
            else f"tokenizer {tokenizer!r}: the package {name} is not installed; pip install {name}"
        ) from error
