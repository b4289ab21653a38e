"""A small valid space as text, and ways of changing and loading it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces import SearchSpace, load_space

GOOD = """\
version: 1
model: tiny
cluster: dgx_h100
trainer:
  builtin:
    data: python-source
    precision: fp32
parameters:
  tp: [1, 2, 4]
  pp: {log2: [1, 4]}
  vpp: [1, 2]
  mbs: {range: [1, 3]}
  gas: {range: [2, 8], step: 2}
  sequence_parallel: [false, true]
  num_nodes: 1
conditions:
  vpp: pp > 1
constraints:
  - global_batch_size <= 64
objective:
  maximize: tflops_per_gpu
"""

OWN_TRAINER = """\
version: 1
cluster: dgx_h100
trainer:
  command: [python, train.py, --tp, "{tp}", --out, "{trial_dir}/result.json"]
parameters:
  tp: [1, 2, 4]
  zero: [a, b]
objective:
  minimize: seconds
"""


@pytest.fixture
def good() -> str:
    return GOOD


@pytest.fixture
def own_trainer() -> str:
    return OWN_TRAINER


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], SearchSpace]:
    """Load a space from text."""

    def load_text(text: str) -> SearchSpace:
        path = tmp_path / "space.yaml"
        path.write_text(text)
        return load_space(path)

    return load_text
