"""The order in which a space's configurations are recommended."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from search_spaces import load_space, shipped_records
from search_spaces.shipped import SHIPPED


def test_the_recipe_found_by_hand_is_near_the_top_of_frontiers_space() -> None:
    """Dash et al. 2023, section V-A: few tensor-parallel ranks, many stages, many micro-batches."""
    ranking = Ranking.of(Pricing(load_space("gpt_175b_frontier")), top=20)
    for config in ranking.configs:
        assert config["tp"] in (4, 8)
        assert 8 <= config["pp"] <= 16
        assert config["mbs"] <= 3
        assert config["gas"] >= 80
    assert any((c["tp"], c["pp"], c["mbs"]) == (4, 16, 1) for c in ranking.configs)
    assert 0.05 < ranking.num_likely / ranking.num_priced < 0.3


@pytest.mark.parametrize("name", [*shipped_records("space")])
def test_no_shipped_space_has_trials_that_its_time_limits_end(name: str) -> None:
    assert Ranking.of(Pricing(load_space(name)), top=1).warnings == ()


def test_what_would_not_end_in_time_ranks_below_what_would(tmp_path: Path) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "short.yaml"
    path.write_text(text.replace("timeout: 15m", "timeout: 90s").replace("  no_progress", "#"))
    free, short = (
        Ranking.of(Pricing(load_space(name)), top=5) for name in ("llama_8b_dgx_h100", path)
    )
    needed_s = 60 + 7 * free.pricing.predict(free.configs).step_time_s
    assert needed_s.max() > 90  # the best ones have the largest batches
    needed_s = 60 + 7 * short.pricing.predict(short.configs).step_time_s
    assert needed_s.max() < 90
