"""Quantized collectives on 8 real ranks."""

from __future__ import annotations

from typing import Any

import pytest

from support.placement_cases import job

COLLECTIVES = {
    **job("gpt", "zero3", name="collectives"),
    "id": "collectives",
    "options": {"collectives": True},
}


@pytest.fixture(scope="module")
def found(run_ranks) -> dict[str, Any]:
    """What collectives on 8 ranks did, see ``collective_cases``."""
    return run_ranks([COLLECTIVES])["collectives"]


def test_quantized_collectives_err_by_no_more_than_their_formats(found: dict[str, Any]) -> None:
    """In every dtype, bfloat16 too (DeepSpeed #8215), and where sizes do not divide (#5056)."""
    errors = {name: error for name, error in found.items() if isinstance(error, float)}
    assert len(errors) == 3 * 4 + 1
    assert all(0 < error < 1 for error in errors.values()), errors


def test_a_reduced_row_lands_on_its_rank_over_any_hops(found: dict[str, Any]) -> None:
    assert found["misplaced"] < 1e-4


def test_all_ranks_decode_the_same_bits(found: dict[str, Any]) -> None:
    assert found["differ"] == 0


def test_no_size_or_dtype_falls_back_to_full_width(found: dict[str, Any]) -> None:
    sent = found["bytes"]
    assert len(sent) == 3 * 6 * 2 * 3
    assert all(found == 2 * expected for found, expected in sent)
