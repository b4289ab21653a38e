"""The benchmark of warm starts, on sweeps that the tests write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.search.warm_start import (
    MODEL,
    NODES,
    Compared,
    Pair,
    Searches,
    lines,
    main,
    pairs,
    sweeps,
)


def test_a_landscape_is_paired_with_its_nearest_in_one_respect(truth: Callable[..., Path]) -> None:
    found: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for pair in pairs([*sweeps(truth((16, 1), (16, 2), (16, 4), (24, 2)))]):
        at = (pair.target.model.split("x")[0], pair.target.nodes, pair.differs)
        found.setdefault(at, []).append((pair.source.model.split("x")[0], pair.source.nodes))
    assert found == {
        ("16", 1, NODES): [("16", 2)],
        ("16", 2, NODES): [("16", 1), ("16", 4)],
        ("16", 4, NODES): [("16", 2)],
        ("16", 1, MODEL): [("24", 2)],
        ("16", 2, MODEL): [("24", 2)],
        ("16", 4, MODEL): [("24", 2)],
        ("24", 2, MODEL): [("16", 2)],
    }


def test_the_rows_have_the_differences_of_each_kind_and_of_all() -> None:
    def compared(differs: str, cold: int, warm: int, offered: int) -> Compared:
        trials = {"cold": cold, "warm": warm, "archive": offered}
        return Compared(
            differs, "t", "s", 0, trials, dict(zip(trials, (0.25, 0.0, 0.125), strict=True))
        )

    some = [compared(NODES, 4, 1, 4), compared(NODES, 1, 4, 2), compared(MODEL, 2, 9, 3)]
    _, _, *found = lines(some)
    assert found[0].startswith(
        f"| {NODES} | 2 | 2.00 / 4 | 2.00 / 4 | 2.83 / 4 | +0, +0.00, +3 | +0.5, +0.50, +1 |"
    )
    assert found[1].startswith(f"| {MODEL} | 1 | 2.00 / 2 | 9.00 / 9 | 3.00 / 3 | +7, +7.00, +7 |")
    assert found[2].startswith("| all | 3 |") and found[2].endswith("| 25.0, 0.0, 12.5 % |")
    few = [replace(one, trials={n: one.trials[n] for n in ("cold", "archive")}) for one in some]
    assert [*lines(few)][2].startswith(f"| {NODES} | 2 | 2.00 / 4 | 2.83 / 4 | +0.5, +0.50, +1 |")


def test_a_sample_is_drawn_and_a_landscape_named(
    truth: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(self: Searches, pair: Pair) -> Compared:
        of = dict.fromkeys(self.hows, 1)
        keys = pair.target.landscape.key, pair.source.landscape.key
        return Compared(pair.differs, *keys, self.seed, of, of)

    monkeypatch.setattr(Searches, "compare", compare)
    folder = str(truth((16, 1), (16, 2), (16, 4)))
    for options, count in (["--sample", "3"], 3), (["--sample", "9"], 4), ([], 4):
        assert main(["--truth", folder, "--no-warm", *options]) == 0
        said = capsys.readouterr().out
        assert f"| all | {count} |" in said and said.count("1 cold, 1 archive") == count
    [*every] = pairs([*sweeps(Path(folder))])
    own = every[0].target.landscape.key
    assert main(["--truth", folder, "--target", own]) == 0
    said = capsys.readouterr().out
    assert said.count("1 cold, 1 warm, 1 archive") == said.count(f"{own} after ") > 0


@pytest.mark.heavy
def test_every_pair_is_searched_cold_and_warm_and_written_down(
    truth: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    folder = truth((16, 1), (16, 2))
    assert main(["--truth", str(folder), "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Python" in said.splitlines()[0] and "| all | 2 |" in said
    written = json.loads(out.read_text())
    assert len(written) == 2
    for one in written:
        assert one["target"] != one["source"]
        assert all(1 <= one["trials"][how] <= 37 for how in ("cold", "warm", "archive"))
    # The source is of the same truth, and the constants know nothing of it otherwise.
    assert sum(one["trials"]["warm"] - one["trials"]["cold"] for one in written) <= 0


def test_a_folder_without_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--truth", str(tmp_path)])
    assert raised.value.code == 2
