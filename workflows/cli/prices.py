"""Prices of a space that runs have calibrated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis import MissingFactError, NotPricedError, Pricing, Run, RunFolder, read_run
from search_spaces import SearchSpace, load_space
from workflows.cli.arguments import UsageError


def calibrated(
    space: SearchSpace, runs: Iterable[Path], otherwise: str
) -> tuple[Pricing, list[tuple[Run, Pricing]]]:
    """Prices by a cost model that has learnt from runs, and each run with its own prices.

    Raises UsageError if the cost model cannot price the space or a run's; ends in ``otherwise``.
    """
    where, learnt = space.file, []
    try:
        pricing = Pricing(space)
        for folder in runs:
            where = str(RunFolder(folder).space_file)
            own = Pricing(load_space(where))
            run = read_run(folder)
            pricing.learn(run, own)
            learnt.append((run, own))
    except (NotPricedError, MissingFactError) as error:
        raise UsageError(f"{where}: {error}: {otherwise}") from error
    return pricing, learnt
