"""The lengths and the batch that a trainer's own command line or file say, for a first space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from foundation.documents import document_of
from search_spaces.errors import SpaceError
from search_spaces.language.fields import Scalar
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers import model_keys, options
from search_spaces.trainers.adapters import read_adapter
from search_spaces.trainers.told import Told


@dataclass(frozen=True)
class Sizes:
    """What is trained in a step.

    Attributes:
        seq_length: tokens of a sequence; None where the trainer is not told.
        global_batch_size: sequences of a step; None where it does not follow.
    """

    seq_length: int | None
    global_batch_size: int | None


def told_sizes(trainer: Mapping[str, Any], ranks: int) -> Sizes:
    """What a trainer's own words come to on so many ranks.

    Args:
        trainer: of a space, with its adapter.
        ranks: that its launch script starts; 0 where nobody knows.

    Raises:
        SpaceError: if there is no such adapter, or its file cannot be read.
    """
    document = document_of({"trainer": dict(trainer)}, "space", SpaceError)
    told = Told(document, TrainerSpec(**trainer), read_adapter(trainer["adapter"]))
    return Sizes(told.seq_length(), told.batch() or _product(told, ranks))


def implied_options(adapter: str, arguments: Sequence[str]) -> dict[str, Scalar]:
    """Options of the model that arguments lack and that others of theirs imply, by name.

    Raises:
        SpaceError: if there is no such adapter.
    """
    record = read_adapter(adapter)
    told = options.read(arguments, record.options)
    keys = (key for key in record.model.values() if key.key not in told)
    found = {key.key: model_keys.implied(key, told) for key in keys}
    return {name: value for name, value in found.items() if value is not None}


def _product(told: Told, ranks: int) -> int | None:
    rule = told.adapter.batch
    if rule is None:
        return None
    first, *more = (told.said(key) for key in rule.of)
    times = {None: 1.0, "ranks": ranks, "replicas": _replicas(told, ranks)}[rule.times]
    sizes = [first, times, *(1 if each is None else each for each in more)]
    numbers = [each for each in sizes if isinstance(each, (int, float)) and each > 0]
    size = prod(numbers)
    return int(size) if len(numbers) == len(sizes) and size == int(size) else None


def _replicas(told: Told, ranks: int) -> float:
    """Ranks over the degrees that are told; 0 where these do not go into them."""
    degrees = told.parameters()
    split = prod(int(degrees.get(name, 1)) for name in ("tp", "pp", "cp"))
    return ranks // split if split and ranks % split == 0 else 0
