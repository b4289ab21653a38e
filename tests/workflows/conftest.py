from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_spaces import SearchSpace, load_space

SPACE = """
version: 1
name: toy
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer:
  command: [python, trainer.py, "{tp}", "{mbs}"]
parameters:
  num_nodes: [1, 2]
  tp: [1, 2]
  mbs: {range: [1, 8]}
objective: {maximize: speed}
trial: {timeout: 60s}
budget: {trials: 12}
finalists: false
"""


@pytest.fixture
def make_space(tmp_path: Path) -> Callable[..., SearchSpace]:
    """A space from ``SPACE``, with top-level keys replaced: ``make_space(allow="[]")``."""

    def make(**keys: Any) -> SearchSpace:
        import yaml

        content = yaml.safe_load(SPACE)
        content.update({k: yaml.safe_load(v) for k, v in keys.items()})
        path = tmp_path / "toy.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return load_space(path)

    return make
