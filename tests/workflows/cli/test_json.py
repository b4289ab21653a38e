"""``--json``: standard output is one JSON document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.run.folder import RunFolder
from search_spaces import load_space
from support.run_book import RunBook
from support.toy_space import SPACE
from workflows.cli.main import main

TABLE_4 = "gpt_175b_frontier_table4"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert next(iter(told)) == "schema"
    assert told["schema"] == {"command": arguments[0], "version": 1}
    return told


def test_a_space_and_its_ranking_are_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    checked = answer(capsys, "check", TABLE_4)
    assert (checked["configurations"], checked["valid"], checked["exact"]) == (3264, 2788, True)
    removed = {row["rule"]: row["alone"] for row in checked["removed"]}
    assert removed["world_by_tp_pp"] == 476
    ranked = answer(capsys, "predict", TABLE_4, "--top", "2", "--explain")
    assert len(ranked["configurations"]) == 2
    first = ranked["configurations"][0]
    assert first["step_time_low_s"] < first["step_time_s"] < first["step_time_high_s"]
    assert sum(first["memory_parts_bytes"].values()) == pytest.approx(first["memory_bytes"])
    outside = first["memory_parts_bytes"]["framework"]
    assert first["reserved_bytes"] == pytest.approx(first["memory_bytes"] - outside)
    assert sum(first["time_parts_s"].values()) == pytest.approx(first["step_time_s"])
    scaled = answer(capsys, "predict", TABLE_4, "--scaling", "weak", "--nodes", "16,32")
    assert [size["num_nodes"] for size in scaled["sizes"]] == [16, 32]


def test_what_a_prediction_assumes_is_no_part_of_its_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["predict", "--model", "llama_8b", "--cluster", "dgx_h100", "--top", "1", "--json"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["configurations"][0]["config"]
    assert "assumed; set with" in said.err


def test_a_run_and_its_report_are_told_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = RunBook(tmp_path / "run")
    (tmp_path / "own.yaml").write_text(SPACE)
    RunFolder(book.directory).create(load_space(tmp_path / "own.yaml"))
    book.run_one(1, {"tp": 1}, "ok", 2.5)
    book.run_one(2, {"tp": 4}, "oom", None)
    book.propose(3, {"tp": 2})
    book.start(3)
    book.close()
    told = answer(capsys, "status", str(book.directory))
    assert told["trials"] == {
        "ended": 2, "ok": 1, "failed": {"oom": 1}, "running": [3], "budget": 9,
    }  # fmt: skip
    assert told["best"]["trial"] == 1 and told["best"]["config"] == {"tp": 1}
    assert told["simulated"] and not told["running"]
    reported = answer(capsys, "report", str(book.directory))
    assert Path(reported["page"]).exists() and Path(reported["best_yaml"]).exists()
    assert reported["best"] == told["best"]
    explained = answer(capsys, "explain", str(book.directory), "2")
    assert (explained["trial"], explained["kind"], explained["best"]) == (2, "oom", 1)
    assert [a["kind"] for a in explained["attempts"]] == ["oom"]
    main(["explain", str(book.directory), "2"])
    assert capsys.readouterr().out.splitlines() == explained["explanation"]
