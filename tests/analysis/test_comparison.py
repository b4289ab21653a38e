"""Runs side by side."""

from __future__ import annotations

from pathlib import Path

from analysis.comparison import Comparison
from support.run_book import RunBook


def test_runs_are_told_side_by_side_and_what_their_bests_have_in_common_once(
    tmp_path: Path,
) -> None:
    one, other = RunBook(tmp_path / "one"), RunBook(tmp_path / "other")
    one.run_one(1, {"tp": 1, "mbs": 4}, "ok", 1.0)
    one.run_one(2, {"tp": 2, "mbs": 4}, "ok", 2.0)
    other.run_one(1, {"tp": 8, "mbs": 4}, "oom", None)
    other.run_one(2, {"tp": 4, "mbs": 4}, "ok", 2.95)
    other.propose(3, {"tp": 2, "mbs": 4}, expected={"left": 0.02})
    other.t += 60
    other.start(3)
    other.t += 60
    other.end(3, "ok", 3.0)
    runs = [one.read(), other.read()]
    rows = dict(Comparison(runs).rows())
    assert rows["trials"] == ["2", "3 (1 oom)"]
    assert rows["best"] == ["2 speed", "3 speed"] and rows["relative to the first"] == ["1", "1.5"]
    assert rows["within 5 % of it"] == ["after 2 trials", "after 2 trials"]
    assert rows["left, expected"] == ["–", "2 %"]
    assert "tp" not in rows and rows["in common"] == ["tp=2 mbs=4"]
    minimized = RunBook(tmp_path / "third", {"minimize": "step_time_s"})
    minimized.run_one(1, {"tp": 8, "mbs": 4}, "ok", 0.5)
    lines = Comparison([*runs, minimized.read()]).text()
    assert any(line.split() == ["tp", "2", "2", "8"] for line in lines)
    assert any(line.split() == ["in", "common", "mbs=4"] for line in lines)
    assert "the objectives differ" in lines[-1]
    for book in (one, other, minimized):
        book.close()
