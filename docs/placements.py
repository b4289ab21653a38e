"""Prints the tables of the pages on placements: ``python docs/placements.py``.

They are docs/guide/training.md and docs/how-it-works/placements.md.

Nothing is run: the placement record and the plan's exchanges say beforehand what a rank holds and
what it sends.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import meshtune  # noqa: F401 - finds its packages before folders of tests with their names
from trainer.plan.axes.dp import Holders
from trainer.plan.axes.mesh import Axes
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.placement import Level, Placement, Topology
from trainer.plan.presets import PRESETS, Preset, place
from trainer.plan.shards import UnitLayout, secondary_wire, sum_format

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.expected_traffic import expected_traffic  # tests are on no other path
from support.unit_exchanges import bytes_per_rank, unit_exchanges

MODELS = Path(__file__).parents[1] / "search_spaces" / "models"
RANKS = 8
SMALL = Topology(ranks_per_node=4, ranks_per_pair=2)
"""The picture's machine: two nodes of two cards of two dies."""
FRONTIER_RANKS = 48 * 8
FRONTIER = Topology(ranks_per_node=8, ranks_per_pair=2)


def small(preset: Preset) -> Placement:
    """A preset on the picture's machine, in bf16."""
    return place(preset, {}, RANKS, 1, SMALL, Format.BF16)


class Collective(NamedTuple):
    """What one layer does over and over."""

    purpose: str
    size: int
    """Ranks of its group."""
    stride: int
    """Between them."""

    @property
    def ranks(self) -> list[int]:
        """Of the first group."""
        return Axes({"dp": RANKS}).groups("dp", self.size, self.stride)[0]

    def wire(self, placement: Placement) -> Format:
        """Number format on the way."""
        if self.purpose in ("weights", "publish"):
            return placement.gather_format
        if self.purpose == "secondary":
            return secondary_wire(placement)
        if self.purpose == "gradient_sync" and self.stride == placement.optimizer_shard:
            return sum_format(placement)
        return placement.reduce_format


def layer_collectives(placement: Placement) -> dict[Collective, str]:
    """How often each runs for one layer in a step of m micro-batches."""

    def count(gas: int) -> Counter[Collective]:
        if not placement.fully_sharded:
            shares = placement.optimizer_shard
            whole = {Collective("gradients", shares, 1): gas, Collective("publish", shares, 1): 1}
            return Counter(whole)
        gathers = 1 if placement.keeps_whole else 2 * gas  # forward, backward
        far = 1 if placement.secondary_shard else gathers
        unit = UnitLayout(placement, ((1024, 1024),), SMALL.replicas_per_node(RANKS, 1))

        holders = Holders(RANKS, 1, 1, placement)
        found: Counter[Collective] = Counter()
        for one in unit_exchanges(unit, holders, (far, gathers - far), gas):
            if one.group.size > 1 and one.times:
                collective = Collective(one.purpose, int(one.group.size), int(one.group.stride))
                found[collective] += int(one.times)
        return found

    once, twice = count(1), count(2)
    spelled = {}
    for collective, times in twice.items():
        slope = times - once[collective]
        rest = once[collective] - slope
        m = {0: "", 1: "m"}.get(slope, f"{slope}m")
        spelled[collective] = f"{m}{rest:+d}" if m and rest else m or str(rest)
    return spelled


def degrees_table() -> Iterator[str]:
    """Who holds how much."""
    yield "| placement | weights | copy | gradients | optimizer | bytes per parameter |"
    yield "|---|---|---|---|---|---|"
    for preset in PRESETS:
        placement = small(preset)
        copy, form = placement.secondary_shard, placement.secondary_format
        cells = (
            f"`{preset}`",
            f"1/{placement.weight_shard}",
            f"1/{copy} {form}" if copy else "",
            f"1/{placement.gradient_shard}",
            f"1/{placement.optimizer_shard}",
            f"{sum(bytes_per_rank(placement, 1000).values()) / 1000:g}",
        )
        yield f"| {' | '.join(cells)} |"


def travel_table() -> Iterator[str]:
    """What travels over which link, and how often."""
    yield "| placement | in a pair | in a node | between nodes |"
    yield "|---|---|---|---|"
    for preset in PRESETS[2:]:
        placement = small(preset)
        cells: dict[Level, list[str]] = {level: [] for level in Level}
        for collective, times in layer_collectives(placement).items():
            level = SMALL.level(collective.ranks)
            said = f"{collective.purpose} {collective.wire(placement)} x {times}"
            cells[level].append(said.replace("-", " - "))
        yield f"| `{preset}` | {' | '.join(', '.join(cell) for cell in cells.values())} |"


def volume_table() -> Iterator[str]:
    """A 20B model on 48 Frontier nodes: bytes a node's network carries out of it, in a step."""
    facts = yaml.safe_load((MODELS / "gpt_neox_20b.yaml").read_text())
    model = {key: value for key, value in facts.items() if key not in ("name", "source")}
    variants: list[tuple[str, dict[str, Any]]] = [
        ("`zero1`", {"placement": "zero1"}),
        ("`zero2`", {"placement": "zero2"}),
        ("`zero3`", {"placement": "zero3"}),
        ("... `reduce_precision: bf16`", {"placement": "zero3", "reduce_precision": "bf16"}),
        ("`hpz`", {"placement": "hpz"}),
        ("`mics`", {"placement": "mics"}),
        ("`zero++`", {"placement": "zero++"}),
        (
            "... `refresh_secondary: micro_batch`",
            {"placement": "zero++", "refresh_secondary": "micro_batch"},
        ),
        ("`zero_topo`", {"placement": "zero_topo"}),
        ("... `secondary_shard: 0`", {"placement": "zero_topo", "secondary_shard": 0}),
    ]
    yield "| placement | states, GiB per rank | GB out of a node: gas 1 | gas 4 | gas 8 |"
    yield "|---|---|---|---|---|"
    for name, settings in variants:
        cells = [name]
        for gas in (1, 4, 8):
            config = TrainConfig.parse(
                {"model": model, "data": "", "gas": gas, "ranks_per_pair": 2, **settings}
            )
            placement = config.place(FRONTIER_RANKS, FRONTIER.ranks_per_node)
            if len(cells) == 1:
                held = sum(bytes_per_rank(placement, config.model.num_parameters).values())
                cells.append(f"{held / 2**30:.1f}")
            cells.append(f"{out_of_a_node(config, placement) / 1e9:.0f}")
        yield f"| {' | '.join(cells)} |"


def out_of_a_node(config: TrainConfig, placement: Placement) -> int:
    """Bytes in a step that one Frontier node sends to others.

    A ring in the order of ranks leaves a node once, however many of its ranks are in it. A group of
    ranks that stand at the same place in their nodes leaves it with all that each of them sends.
    """
    report = expected_traffic(config, FRONTIER_RANKS, 0, FRONTIER.ranks_per_node)["bytes"]
    strides = {"gradient_sync": placement.gradient_shard}
    if placement.fully_sharded:
        strides["publish"] = placement.gradient_shard
    if placement.reduce_format.quantized:
        strides["gradients"] = FRONTIER.ranks_per_node  # the second hop
    return sum(
        by_level.get(Level.INTER_NODE, 0) * min(strides.get(purpose, 1), FRONTIER.ranks_per_node)
        for purpose, by_level in report.items()
    )


def main() -> None:
    for table in (degrees_table, travel_table, volume_table):
        print("\n".join(table()), end="\n\n")


if __name__ == "__main__":
    main()
