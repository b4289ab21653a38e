"""Megatron-LM's pipeline layouts: a string that assigns layers to stages.

``"Et*3|(tt|)*29,m|L"``: E embedding, t transformer layer, m layer of multi-token prediction, L
output layer with the loss; ``|`` ends a stage, ``*N`` repeats a letter or a parenthesized group,
commas are ignored. With ``vpp`` chunks per rank, stage i is chunk i // pp of rank i % pp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from foundation.documents import as_written

Array = Any  # a number, or a numpy column

NO_LAYOUT = "none"  # value of ``pipeline_layout`` without a layout
MOST_LETTERS = 100_000
_LETTER = r"[EtmL|](?:\*[0-9]{1,6})?"
_ITEM = re.compile(rf"\((?P<group>(?:{_LETTER})+)\)\*(?P<times>[0-9]{{1,6}})|(?P<one>{_LETTER})")
_ACCEPTED = "E, t, m, L and |, each or a group in parentheses followed by *N to repeat it"


class LayoutError(ValueError):
    """An invalid layout; the message names position (from 1) and what is accepted."""

    def __init__(self, text: str, position: int, what: str) -> None:
        super().__init__(f"found {as_written(text, 200)}, at position {position}: {what}")


@dataclass(frozen=True)
class Chunk:
    """One stage of a layout: a model chunk of one pipeline rank."""

    layers: int  # transformer layers
    predictors: int  # layers of multi-token prediction


@dataclass(frozen=True)
class PipelineLayout:
    """A layout for some number of ranks, its chunks in the order of a forward pass."""

    chunks: tuple[Chunk, ...]

    @cached_property
    def num_layers(self) -> int:
        return sum(chunk.layers for chunk in self.chunks)

    def fits(self, pp: Array, vpp: Array) -> Array:
        """Whether it has pp * vpp chunks, multi-token prediction only in a rank's last one
        (Megatron)."""
        fits = np.equal(pp * vpp, len(self.chunks))
        for index, chunk in enumerate(self.chunks):
            if chunk.predictors:
                fits = fits & (np.floor_divide(index, pp) == vpp - 1)
        return fits

    def ranks(self, pp: int) -> list[tuple[Chunk, ...]]:
        return [self.chunks[rank::pp] for rank in range(pp)]

    def layers_of_chunks(self, pp: int) -> list[tuple[int, ...]]:
        """Layers of each rank's chunks, multi-token prediction included."""
        return [tuple(c.layers + c.predictors for c in chunks) for chunks in self.ranks(pp)]


@lru_cache(maxsize=10_000)
def parsed_layout(text: str) -> PipelineLayout:
    """Parse a layout as Megatron-LM does; raises LayoutError."""
    letters = _letters(text)
    _check_ends(text, letters)
    _check_predictors(text, letters)
    stages = "".join(letter for letter, _ in letters).split("|")
    return PipelineLayout(tuple(Chunk(stage.count("t"), stage.count("m")) for stage in stages))


def chunks_per_rank(texts: Iterable[object], degrees: Collection[object]) -> list[int]:
    """Possible vpp of layouts (``NO_LAYOUT``: 1) at these pp degrees; invalid ones are skipped."""
    found = set[int]()
    for text in texts:
        try:
            stages = 0 if text == NO_LAYOUT else len(parsed_layout(str(text)).chunks)
        except LayoutError:
            continue
        several = [pp for pp in degrees if isinstance(pp, int) and pp > 1]
        found |= {stages // pp for pp in several if stages % pp == 0} if stages else {1}
    return sorted(found)


def _letters(text: str) -> list[tuple[str, int]]:
    """Letters and bars with positions; repeated ones have the position of the original."""
    positions = [index for index, letter in enumerate(text, start=1) if letter != ","]
    plain = text.replace(",", "")
    found: list[tuple[str, int]] = []
    at = 0
    while at < len(plain):
        item = _ITEM.match(plain, at)
        if item is None:
            raise LayoutError(text, positions[at], f"{plain[at]!r}, accepted {_ACCEPTED}")
        times, start = int(item["times"] or 1), item.start("group" if item["group"] else "one")
        inside = [
            (each[0][0], positions[start + each.start()])
            for each in re.finditer(_LETTER, item["group"] or item["one"])
            for _ in range(min(int(each[0][2:] or 1), MOST_LETTERS + 1))
        ]
        if len(found) + times * len(inside) > MOST_LETTERS:
            raise LayoutError(text, positions[at], f"accepted at most {MOST_LETTERS:,} letters")
        found += times * inside
        at = item.end()
    return found


def _check_ends(text: str, letters: list[tuple[str, int]]) -> None:
    """The first letter is the only E, the last one the only L."""
    ends = (("E", "the embedding", 0, "first"), ("L", "the output layer with the loss", -1, "last"))
    for letter, meaning, end, name in ends:
        places = [position for each, position in letters if each == letter]
        if not letters or letters[end][0] != letter:
            wrong = letters[end][1] if letters else 1
            raise LayoutError(text, wrong, f"accepted {letter}, {meaning}, as the {name} letter")
        if len(places) > 1:
            again = places[1] if end == 0 else places[0]
            raise LayoutError(text, again, f"{letter} more than once, accepted: one, {name} of all")


def _check_predictors(text: str, letters: list[tuple[str, int]]) -> None:
    """Multi-token prediction follows all transformer layers, on one stage."""
    stage, theirs = 0, None
    for letter, position in letters:
        stage += letter == "|"
        if letter == "m" and theirs not in (None, stage):
            raise LayoutError(text, position, "m on a further stage, accepted: all on one")
        if letter == "t" and theirs is not None:
            raise LayoutError(text, position, "t behind m, accepted: every t before the first m")
        theirs = stage if letter == "m" else theirs
    if not any(letter == "t" for letter, _ in letters):
        raise LayoutError(text, 1, "no layer, accepted: a t for each layer of the model")
