"""Dash's weak and strong scaling on Frontier (Figure 12), and energy, by the cost model.

    python -m benchmarks.cost_model.dash_scaling --truth FOLDER

The paper states the efficiencies in its text. For strong scaling it says that a replica spans more
GPUs as their number grows, but neither how nor from which number on; its Table V has other batches.
Prints Markdown: weak scaling; strong scaling from one replica, by how the layout changes on the
way, with the parts of the step on the most GPUs; and the joules for 20 tokens a parameter.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.cost.fitted import cost_model
from analysis.cost.model import Prediction
from analysis.sweeps.record import read_csv
from benchmarks.cost_model.statements import candidates, gpt_shape
from benchmarks.printing import machine
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named

TABLE = "dash_frontier_best.csv"
# Model, batch of its strong scaling, GPUs of one replica, most GPUs, published efficiency, and
# possible changes of the layout on the most GPUs.
STRONG: tuple[tuple[str, int, int, int, float, tuple[dict[str, list[float]], ...]], ...] = (
    ("175B", 8000, 64, 1024, 0.8993, (
        {}, {"tp": [8]}, {"pp": [32]}, {"tp": [8], "pp": [32]}, {"mbs": [2]}, {"mbs": [4]},
    )),
    ("1T", 8016, 512, 3072, 0.8705, (
        {}, {"tp": [16]}, {"pp": [128]}, {"mbs": [2]}, {"mbs": [4]},
    )),
)  # fmt: skip
PARTS = ("tensor", "pipeline", "head", "bubble", "gradients")
WEAK = ("1T", 1600, (1024, 2048, 3072))  # model, batch of one replica, numbers of GPUs
ENERGY = {"22B": 284e9, "175B": 17.65e12, "1T": 662e12}  # joules, section V-D
TOKENS = 20  # a parameter
PARAMETERS = {"22B": 22e9, "175B": 175e9, "1T": 1e12}


class Frontier:
    """The paper's models with its degrees of parallelism."""

    def __init__(self, truth: Path) -> None:
        self.rows = {row["model"]: row for _, row in read_csv(truth / TABLE).iterrows()}
        habits = framework_named("megatron-deepspeed-2022").with_habits(flash_attention=True)
        self.model = cost_model(Cluster.named("frontier"), habits)

    def predict(self, model: str, gpus: int, batch: int, **changed: list[float]) -> Prediction:
        """All configurations of a batch on so many GPUs."""
        row = self.rows[model]
        layers, hidden, heads = (float(row[name]) for name in ("layers", "hidden", "heads"))
        known = {name: [float(row[name])] if row[name] else [1.0, 2.0, 4.0, 8.0]
                 for name in ("tp", "pp", "mbs")} | changed  # fmt: skip
        made = candidates(
            gpt_shape(layers, hidden, heads, 2048),
            **known,
            dp=[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0],
            gas=[1.0],
            zero_stage=[1.0],
        )
        made = made[made.layout.world_size == gpus]
        gas = batch / (made.layout.mbs * made.layout.dp)
        made = replace(made, layout=replace(made.layout, gas=gas))
        made = made[gas % 1 == 0]
        if not len(made):
            raise ValueError(f"{model}: {batch} sequences cannot be dealt out on {gpus} GPUs")
        return self.model.predict(made)


def strong(frontier: Frontier) -> None:
    print(f"\n| model | batch | GPUs | changed | fits | {', '.join(PARTS)}: % of a step "
          "| efficiency | published | difference, points |")  # fmt: skip
    print("|---" * 9 + "|")
    for model, batch, first, most, published, changes in STRONG:
        for changed in changes:
            # The size of micro-batches is the same on few and on most GPUs; degrees change.
            begun = {name: value for name, value in changed.items() if name == "mbs"}
            few = frontier.predict(model, first, batch, **begun)
            many = frontier.predict(model, most, batch, **changed)
            step_s = float(many.step_time_s[0])
            told = first * float(few.step_time_s[0]) / (most * step_s)
            parts = many.time.as_dict()
            shares = [f"{100 * float(parts[name][0]) / step_s:.1f}" for name in PARTS]
            words = ", ".join(f"{name} {value:.0f}" for name, [value] in changed.items())
            cells = [model, f"{batch:,}", f"{first} to {most:,}", words or "nothing"]
            cells += [f"{100 * min(few.fits[0], many.fits[0]):.0f} %", ", ".join(shares)]
            cells += [f"{100 * told:.1f} %", f"{100 * published:.1f} %"]
            print(f"| {' | '.join([*cells, f'{100 * (told - published):+.1f}'])} |", flush=True)


def weak(frontier: Frontier) -> None:
    print("\n| model | GPUs | batch | step, s | model TFLOP/s of a GPU | efficiency | published |")
    print("|---" * 7 + "|")
    model, of_replica, sizes = WEAK
    first: float | None = None
    for gpus in sizes:
        batch = of_replica * gpus // 512
        found = frontier.predict(model, gpus, batch)
        rate = float(found.tokens_per_second[0]) / gpus
        first = first or rate
        cells = [model, f"{gpus:,}", f"{batch:,}", f"{found.step_time_s[0]:.0f}"]
        cells += [f"{found.tflops_per_gpu[0]:.1f}", f"{100 * rate / first:.1f} %", "100 %"]
        print(f"| {' | '.join(cells)} |")


def energy(frontier: Frontier) -> None:
    print(
        "\n| model | GPUs | J per token | for 20 tokens a parameter, TJ | published | difference |"
    )
    print("|---" * 6 + "|")
    for model, joules in ENERGY.items():
        row = frontier.rows[model]
        gpus, batch = {"22B": (64, 640), "175B": (128, 640), "1T": (1024, 3200)}[model]
        found = frontier.predict(model, gpus, batch)
        fits = np.where(found.fits >= 0.5, found.joules_per_token, np.inf)
        per_token = float(np.min(fits))
        told = per_token * TOKENS * PARAMETERS[model]
        cells = [row["model"], f"{gpus:,}", f"{per_token:.3g}", f"{told / 1e12:.3g}"]
        cells += [f"{joules / 1e12:.4g}", f"{told / joules - 1:+.0%}"]
        print(f"| {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder with published tables")
    frontier = Frontier(parser.parse_args().truth)
    weak(frontier)
    strong(frontier)
    energy(frontier)
    print(f"\n{machine([])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
