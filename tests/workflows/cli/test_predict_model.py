"""``meshtune predict --model --cluster``: a ranking without a space."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from analysis import Pricing, Ranking
from search_spaces import default_space, load_space
from workflows.cli.main import main

MODEL = ["--model", "llama_8b", "--cluster", "dgx_h100"]


def test_a_configuration_and_a_cluster_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Qwen3-8B" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"model_type": "qwen3", "intermediate_size": 12288}))
    command = ["predict", "--model", str(file), "--cluster", "dgx_h100", "--nodes", "4"]
    assert main([*command, "--top", "3", "--explain"]) == 0
    out = capsys.readouterr().out
    space = load_space(default_space(str(file), "dgx_h100", 4))
    assert out.startswith(f"{space.description}\n(assumed; set with --framework,")
    assert Ranking.of(Pricing(space), 3).table() in out
    assert "memory:" in out and "forward backward" in out


def test_what_is_said_is_not_called_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--framework", "nanotron", "--global-batch-size", "64", "--seq-length", "4096"]
    assert main(["predict", *MODEL, *more, "--top", "1"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "on 1 x 8 GPUs of dgx_h100 with nanotron: steps of 64 x 4,096 tokens" in first
    assert second == ""


def test_a_mixture_of_experts_is_split_over_more_ranks_than_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["predict", "--model", "gpt_oss_120b", "--cluster", "dgx_h100", "--nodes", "8"]
    assert main([*command, "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "116.8 billion parameters" in out
    assert re.search(r"^1 .* num_nodes=8 .* ep=([2-9]|[1-6][0-9]) ", out, re.MULTILINE)


def test_no_trial_is_run_so_none_takes_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", "--model", "llama_405b", "--cluster", "dgx_h100", "--nodes", "32"]
    assert main([*command, "--top", "1"]) == 0
    assert "timeout" not in capsys.readouterr().out


@pytest.mark.parametrize(("nodes", "scaled"), [("2", ["1", "2", "4", "8"]), ("2,6", ["2", "6"])])
def test_the_first_of_several_node_counts_is_scaled(
    nodes: str, scaled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *MODEL, "--nodes", nodes, "--scaling", "weak"]) == 0
    out = capsys.readouterr().out
    assert "weak scaling of num_nodes=2 " in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert rows[: len(scaled)] == scaled


def test_a_space_is_predicted_for_another_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    def rate(*cluster: str) -> float:
        assert main(["predict", "gpt_22b_frontier", "--top", "1", "--json", *cluster]) == 0
        found = json.loads(capsys.readouterr().out)["configurations"][0]
        return float(found["tokens_per_second"])

    own = rate()
    assert rate("--cluster", "frontier") == own
    assert rate("--cluster", "dgx_h100") > 2 * own


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tiny_cpu", "--cluster", "nowhere"], "cluster: found 'nowhere'"),
        ([], "--model and --cluster missing: accepted a space, or --model MODEL --cluster CLUSTER"),
        (["--model", "llama_8b"], "--cluster missing"),
        (["--cluster", "dgx_h100"], "--model missing"),
        (["tiny_cpu", *MODEL], "--model and the space tiny_cpu exclude each other"),
        (["tiny_cpu", "--seq-length", "9"], "--seq-length and the space tiny_cpu exclude"),
        ([*MODEL, "--nodes", "2,4"], "--nodes: several numbers go with --scaling"),
        (["--model", "lama_8b", "--cluster", "dgx_h100"], "--model: found 'lama_8b'"),
        (["--model", "x/config.json", "--cluster", "dgx_h100"], "x/config.json: there is no such"),
        (["--model", "llama_8b", "--cluster", "dgx"], "--cluster: found 'dgx'"),
        ([*MODEL, "--framework", "nemo"], "--framework: found 'nemo', accepted one of"),
        ([*MODEL, "--framework", "fsdp", "--global-batch-size", "7"], "--global-batch-size: found"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *arguments]) == 2
    assert complaint in capsys.readouterr().err
