"""Step time with tuned matrix products, divided by that of torch's own, on CPU ranks.

    python -m benchmarks.trainer.tuning [--pairs 11] [--steps 4] [--hidden 256 512]
        [--precision fp32 bf16]

Both train the same model on the same tokens in ranks of their own, and take turns, as in
``benchmarks.trainer.engine``. Beside the ratio of times stands that of CPU times, which other work
on the machine disturbs less, and what the tuned ranks' forms are said to save. Nothing is cached
from one run to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.trainer.engine import WARMUP_STEPS, Ranks, machine
from trainer.plan.config import TrainConfig

LAYOUTS: dict[str, dict[str, Any]] = {"tp 2": {"tp": 2}, "gx 1, gy 2": {"gy": 2}}
RANKS = 2


def ratios(config: TrainConfig, pairs: int, steps: int) -> tuple[list[float], list[float], float]:
    """Ratios of tuned to plain steps per pair: times and CPU times; and the losses' difference."""
    settings = {"plain": False, "tuned": True}
    with tempfile.TemporaryDirectory() as folder:
        ranks: dict[str, Ranks] = {}
        try:
            for name, tuned in settings.items():
                own = config.model_copy(update={"tune_kernels": tuned})
                ranks[name] = Ranks(name, own, RANKS, folder)
                ranks[name].train(WARMUP_STEPS)
            wall, cpu, apart = [], [], 0.0
            for number in range(pairs):
                order = list(settings) if number % 2 else list(reversed(settings))
                seen = {name: ranks[name].train(steps) for name in order}
                wall.append(seen["tuned"][0] / seen["plain"][0])
                cpu.append(seen["tuned"][1] / seen["plain"][1])
                apart = max(apart, abs(seen["tuned"][2] / seen["plain"][2] - 1))
        finally:
            for group in ranks.values():
                group.end()
    return wall, cpu, apart


def forms(cache: Path) -> str:
    """Number of products that run in another form than the layer's, and the largest gain."""
    choices = {
        product: choice
        for path in cache.glob("meshtune/products-*.json")
        for product, choice in json.loads(path.read_text())["products"].items()
    }
    changed = {p: c for p, c in choices.items() if c["form"] != p[:2]}
    if not changed:
        return f"0 of {len(choices)}"
    product, best = max(changed.items(), key=lambda item: item[1]["default_s"] / item[1]["form_s"])
    gain = best["default_s"] / best["form_s"]
    return f"{len(changed)} of {len(choices)}, at best {product} as {best['form']}: {gain:.2f} x"


def spread(found: list[float]) -> str:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return f"**{median:.3f}** ({low:.3f}..{high:.3f})"


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=11, help="at least 2")
    parser.add_argument("--steps", type=int, default=4, help="of each in a pair")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    args = parser.parse_args()
    print(machine(), "\n")
    print("| layout, hidden size | products in another form | time | CPU time | losses differ by |")
    print("|---|---|---|---|---|", flush=True)
    for layout, degrees in LAYOUTS.items():
        for hidden in args.hidden:
            for precision in args.precision:
                model = {"num_layers": 2, "hidden_size": hidden, "num_heads": hidden // 64}
                model |= {"vocab_size": 4096, "seq_length": 128}
                values = {"model": model, "precision": precision, "data": "", "device": "cpu"}
                config = TrainConfig.parse({**values, "mbs": 4, "gas": 1, **degrees})
                with tempfile.TemporaryDirectory() as cache:
                    os.environ["XDG_CACHE_HOME"] = cache
                    wall, cpu, apart = ratios(config, args.pairs, args.steps)
                    cells = [f"{layout}, {hidden}, {precision}", forms(Path(cache))]
                    cells += [spread(wall), spread(cpu), f"{apart:.0e}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
