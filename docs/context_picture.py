"""Draws docs/images/context.svg: ``python docs/context_picture.py``.

Which rank computes which part of causal attention, and in which step of the ring; the chunks are
the trainer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer.plan.axes.cp import held_chunks

PICTURE = Path(__file__).parent / "images" / "context.svg"
CP = 4
CHUNKS = 2 * CP
INKS = ("#3b6fb6", "#c77a1a", "#2e8b57", "#8a5fb0")
CELL, LEFT, TOP = 44, 150, 84
WIDTH, HEIGHT = LEFT + CHUNKS * CELL + 270, TOP + CHUNKS * CELL + 24


def owners() -> list[int]:
    """The rank of each chunk, in the order of the sequence."""
    found = dict.fromkeys(range(CHUNKS), 0)
    for rank in range(CP):
        for chunk in held_chunks(CHUNKS, rank, CP):
            found[chunk.start] = rank
    return [*found.values()]


def text(x: float, y: float, words: str, size: int = 12, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {more}>{words}</text>'


def cells() -> Iterator[str]:
    """A row for each chunk of queries, a column for each chunk of keys."""
    ranks = owners()
    for row, rank in enumerate(ranks):
        y = TOP + row * CELL
        yield text(LEFT - 12, y + 27, f"queries {row}, rank {rank}", 12, 'text-anchor="end"')
        for column, source in enumerate(ranks):
            x = LEFT + column * CELL
            size = f'x="{x}" y="{y}" width="{CELL}" height="{CELL}" stroke="#fff" stroke-width="2"'
            if column > row:
                yield f'<rect {size} fill="#eee"/>'
                continue
            step = (rank - source) % CP
            yield f'<rect {size} fill="{INKS[rank]}" fill-opacity="{1 - 0.2 * step:g}"/>'
            if column == row:  # half of it is masked
                corner = f"{x + 2},{y + 2} {x + CELL - 2},{y + 2} {x + CELL - 2},{y + CELL - 2}"
                yield f'<polygon points="{corner}" fill="#eee"/>'
            at = (x + CELL / 2, y + 27) if column < row else (x + 13, y + 37)
            yield text(*at, str(step), 13, 'text-anchor="middle" fill="#fff"')
    for column, source in enumerate(ranks):
        x = LEFT + column * CELL + CELL / 2
        yield text(x, TOP - 24, f"keys {column}", 11, 'text-anchor="middle"')
        yield text(x, TOP - 8, f"rank {source}", 11, 'text-anchor="middle"')


def legend() -> Iterator[str]:
    x = LEFT + CHUNKS * CELL + 24
    for rank, ink in enumerate(INKS):
        y = TOP + rank * 26
        yield f'<rect x="{x}" y="{y}" width="16" height="16" fill="{ink}"/>'
        first, second = (chunk.start for chunk in held_chunks(CHUNKS, rank, CP))
        yield text(x + 24, y + 13, f"rank {rank} holds chunks {first} and {second}")
    notes = (
        "the number is the step of the ring",
        "in which the keys are at the rank;",
        "grey: masked",
    )
    for number, words in enumerate(notes):
        yield text(x, TOP + 134 + number * 18, words)


def picture() -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" fill="#222">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    )
    title = text(LEFT, 26, f"Causal attention of one sequence on {CP} ranks", 15)
    return "\n".join((head, title, *cells(), *legend(), "</svg>\n"))


if __name__ == "__main__":
    PICTURE.write_text(picture())
