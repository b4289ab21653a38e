"""Draws docs/images/placements.svg: ``python docs/placements_picture.py``.

Who holds what under three placements, and which collective of a layer goes over which link; both
from the placement record.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placements import RANKS, SMALL, layer_collectives, small

from trainer.plan.axes.mesh import Axes
from trainer.plan.placement import Level, Placement
from trainer.plan.presets import Preset

PICTURE = Path(__file__).parent / "images" / "placements.svg"
TITLES: dict[Preset, str] = {"zero3": "ZeRO-3", "zero++": "ZeRO++", "zero_topo": "ZeRO-topo"}
STATES = {"weights": "#333", "copy": "#8a5fb0", "gradients": "#c77a1a", "optimizer": "#999"}
LINKS = {Level.PAIR: "#2e8b57", Level.NODE: "#3b6fb6", Level.INTER_NODE: "#c0392b"}
LINK_NAMES = {Level.PAIR: "in a card", Level.NODE: "in a node", Level.INTER_NODE: "between nodes"}
PURPOSES = {"secondary": "copy", "gradient_sync": "step's gradients", "publish": "new weights"}
LEFT, DIE, GAP, BAR = 96, 62, 8, 9
WIDTH = 960


def die_left(rank: int) -> int:
    """Where a die begins; cards and nodes stand apart."""
    return LEFT + rank * (DIE + GAP) + rank // 2 * 10 + rank // 4 * 24


def text(x: float, y: float, words: str, size: int = 12, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {more}>{words}</text>'


def rect(x: float, y: float, width: float, height: float, more: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {more}/>'


def holdings(placement: Placement, rank: int) -> dict[str, tuple[float, float]]:
    """Begin and length of what a rank holds of each state, as parts of the whole.

    Rows end to end, as ``trainer.plan.shards`` cuts them: into pieces, and these into slices.
    """
    weights, gradients = placement.weight_shard, placement.gradient_shard
    optimizer = placement.optimizer_shard
    row = rank % weights / weights
    piece = row + rank % gradients // weights / gradients
    cut = piece + rank % optimizer // gradients / optimizer
    parts = {
        "weights": (row, 1 / weights),
        "gradients": (piece, 1 / gradients),
        "optimizer": (cut, 1 / optimizer),
    }
    if degree := placement.secondary_shard:
        parts["copy"] = (rank % degree / degree, 1 / degree)
    return parts


def machine() -> Iterator[str]:
    """Nodes, cards and ranks, above everything."""
    for rank in range(RANKS):
        x = die_left(rank)
        if rank % 4 == 0:
            right = die_left(rank + 3) + DIE
            yield text((x + right) / 2, 18, f"node {rank // 4}", 13, 'text-anchor="middle"')
        if rank % 2 == 0:
            yield rect(x - 4, 24, 2 * DIE + GAP + 8, 36, 'fill="none" stroke="#999" rx="4"')
            yield text(x + DIE + GAP / 2, 38, f"card {rank // 2 % 2}", 11, 'text-anchor="middle"')
        yield text(x + DIE / 2, 54, f"rank {rank}", 11, 'text-anchor="middle"')


def states(placement: Placement, top: int) -> Iterator[str]:
    """For every die and state a bar: the whole in grey, the rank's part in colour."""
    for number, (name, ink) in enumerate(STATES.items()):
        y = top + number * (BAR + 4)
        ranks = range(RANKS) if name in holdings(placement, 0) else ()
        if ranks:
            yield text(LEFT - 14, y + BAR, name, 11, f'fill="{ink}" text-anchor="end"')
        for rank in ranks:
            begin, length = holdings(placement, rank)[name]
            x = die_left(rank)
            yield rect(x, y, DIE, BAR, 'fill="#e6e6e6"')
            yield rect(x + begin * DIE, y, length * DIE, BAR, f'fill="{ink}"')


def traffic(placement: Placement, top: int) -> tuple[list[str], int]:
    """A line for every group, with a dot for each of its ranks; and where they end."""
    axes, drawn, y = Axes({"dp": RANKS}), [], top
    for collective, times in layer_collectives(placement).items():
        ink = LINKS[SMALL.level(collective.ranks)]
        for number, ranks in enumerate(axes.groups("dp", collective.size, collective.stride)):
            line = y + number % collective.stride * 5
            middles = [die_left(rank) + DIE / 2 for rank in ranks]
            path = f"M{middles[0]:g} {line}H{middles[-1]:g}"
            drawn.append(f'<path d="{path}" stroke="{ink}" stroke-width="2"/>')
            drawn += [f'<circle cx="{x:g}" cy="{line}" r="3" fill="{ink}"/>' for x in middles]
        middle = y + (collective.stride - 1) * 2.5 + 4
        purpose = PURPOSES.get(collective.purpose, collective.purpose)
        words = f"{purpose} {collective.wire(placement)} × {times.replace('-', ' − ')}"
        drawn.append(text(die_left(RANKS - 1) + DIE + 14, middle, words, 12, f'fill="{ink}"'))
        y += 16 + (collective.stride - 1) * 5
    return drawn, y


def picture() -> str:
    parts = list(machine())
    top = 96
    for preset, title in TITLES.items():
        placement = small(preset)
        parts.append(text(8, top - 12, title, 15, 'font-weight="bold"'))
        parts += states(placement, top)
        lines, bottom = traffic(placement, top + 4 * (BAR + 4) + 10)
        parts += lines
        top = bottom + 34
    for number, (level, ink) in enumerate(LINKS.items()):
        parts.append(text(8 + number * 80, top - 12, LINK_NAMES[level], 12, f'fill="{ink}"'))
    words = "× how often a step of m micro-batches needs it, for one layer"
    parts.append(text(290, top - 12, words))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" '
        f'font-family="sans-serif" fill="#222">\n'
        + rect(0, 0, WIDTH, top, 'fill="#fff"')
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
