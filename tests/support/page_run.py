"""A run whose page has every figure: it is near what the cost model says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.prediction.pricing import Pricing
from analysis.run.folder import RunFolder
from search_spaces import Candidates, load_space
from support.run_book import RunBook

TRIALS = 130
FIGURES = [
    *("history", "expected", "effects-model", "effects-trials", "dependence", "effects-failure"),
    *("border", "compare", "stacks", "parallel", "heat", "slices", "edf", "roofline", "nodes"),
]


def write_run(folder: Path, name: str = "tiny_cpu", count: int = TRIALS) -> None:
    """A run of a shipped space: every tenth trial out of memory, the others near what is priced."""
    space = load_space(name)
    rng = np.random.default_rng(0)
    candidates = Candidates(space)
    configs = candidates.configs(candidates.indices(count, rng, [], max_nodes=2**31))
    prediction = Pricing(space).predict(configs)
    spread = np.exp(rng.normal(0, 0.02, count))
    speeds = spread * getattr(prediction, next(iter(space.objective.as_dict().values())))
    book = RunBook(folder, space.objective.as_dict())
    RunFolder(folder).space_file.write_text(space.frozen())
    for number, raw in enumerate(configs):
        speed = float(speeds[number])
        foretold = {"objective": speed * 1.01, "low": speed * 0.9, "high": speed * 1.1}
        book.propose(number, space.canonical(raw), "made by a test", foretold)
        book.start(number, nodes=[f"n{number % 4}"])
        book.t += 30
        if prediction.fits[number] < 0.99 or number % 10 == 3:
            book.end(number, "oom", message="out of memory")
        else:
            median_s = float(prediction.step_time_s[number] / spread[number])
            result = {
                "tokens_per_second": float(prediction.tokens_per_second[number] * spread[number]),
                "tflops_per_gpu": float(prediction.tflops_per_gpu[number] * spread[number]),
                "peak_memory_bytes": float(prediction.peak_bytes[number]),
                "step_time_s": {"median": median_s},
            }
            book.end(number, "ok", speed, result=result)
