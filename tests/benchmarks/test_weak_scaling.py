"""The spaces of AxoNN's weak scaling, made from one template."""

from __future__ import annotations

import pytest

from benchmarks.cost_model.weak_scaling import space_of
from search_spaces import check, load_space


@pytest.mark.parametrize(
    ("model", "system", "gpus", "valid"),
    [("5B", "Perlmutter", 512, 632), ("320B", "Frontier", 32768, 506), ("60B", "Alps", 6144, 482)],
)
def test_a_run_of_the_table_has_its_space(model: str, system: str, gpus: int, valid: int) -> None:
    space = load_space(space_of(model, system, gpus))
    config = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    assert space.facts(config)["world_size"] == gpus
    assert check(space).valid == valid
