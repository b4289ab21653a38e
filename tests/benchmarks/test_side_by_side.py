"""SimuMax beside the cost model: what is read of its checkout, and what is asked of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost_model.estimate_train_time import inexpressible
from benchmarks.cost_model.folds import ask
from benchmarks.cost_model.peers import predict
from benchmarks.cost_model.side_by_side import main, some
from benchmarks.cost_model.simumax import (
    H100,
    InexpressibleError,
    MissingError,
    SimuMax,
    _check,
    _model,
    _system,
)
from benchmarks.cost_model.simumax_runs import GIB, RUNS, published_s, read_runs
from search_spaces import Cluster
from support.sweep_rows import read_sweep, row
from trainer.plan.jobs import FULL, Jobs, jobs

CHECKOUT = os.environ.get("SIMUMAX", "")  # where there is one, the real thing is tested, too


def _job(**changes: Any) -> Jobs:
    plain: dict[str, Any] = {
        "num_layers": 8,
        "hidden_size": 512,
        "num_heads": 8,
        "kv_heads": 4,
        "ffn_size": 2048,
        "gated": True,
        "vocab_size": 1024,
        "seq_length": 256,
        "tied_embeddings": False,
        "tp": 2,
        "pp": 1,
        "dp": 4,
        "mbs": 1,
        "gas": 4,
        "zero_stage": 1,
    }
    return jobs({**plain, **changes})


def test_without_a_checkout_there_is_a_sentence_and_no_failure(
    truth: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = truth((16, 1))
    assert main(["--truth", str(folder)]) == 0
    assert "--simumax" in capsys.readouterr().out
    assert main(["--truth", str(folder), "--simumax", str(tmp_path)]) == 0
    assert f"{tmp_path} holds no SimuMax" in capsys.readouterr().out
    assert main(["--truth", str(folder), "--estimate-train-time", str(tmp_path)]) == 0
    assert f"{tmp_path} holds no estimate-train-time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero_stage": 3}, "ZeRO"),
        ({"fp8": True}, "8 bits"),
        ({"element_bytes": 4}, "float32"),
        ({"schedule": 2}, "1F1B"),
        ({"weight_shard": 1, "gradient_shard": 1, "optimizer_shard": 2}, "some replicas"),
    ],
)
def test_a_job_without_words_is_named_by_what_is_missing(
    changes: dict[str, Any], reason: str
) -> None:
    _check(_job())
    with pytest.raises(InexpressibleError, match=reason):
        _check(_job(**changes))


def test_a_model_is_told_in_its_words() -> None:
    n = {name: int(column[0]) for name, column in _job().columns().items()}
    told = _model(n)
    assert (told["head_size"], told["kv_head_num"], told["model_type"]) == (64, 4, "dense")
    assert told["intermediate_size"] == 2048 and told["use_swiglu"] is True


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"gated": True}, "GPT"),
        ({"vocab_size": 250880}, "vocabularies"),
        ({"recompute": 0}, "recomputation"),
        ({"tp": 8}, "tp above 4"),
        ({"pp": 2}, "stages"),
        ({"zero_stage": 3}, "ZeRO"),
    ],
)
def test_estimate_train_time_is_asked_of_what_it_has_words_for(
    changes: dict[str, Any], reason: str
) -> None:
    gpt = {"gated": False, "kv_heads": 8, "vocab_size": 51200, "recompute": FULL, "pp": 4}
    said = inexpressible(_job(**{**gpt, **changes}), Cluster.named("dgx_a100"))
    assert bool(said) == bool(reason) and reason in said


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of a checkout that are read, with two runs."""
    operators = {name: {"tflops": 312} for name in _OPERATORS}
    machine = {
        "sys_name": "a",
        "num_per_node": 8,
        "accelerator": {"op": operators, "bandwidth": {"default": {"gbps": 1600}}},
        "networks": {name: {"bandwidth": {"gbps": 30}} for name in _NETWORKS},
    }
    systems = tmp_path / "configs" / "system"
    systems.mkdir(parents=True)
    for name in ("a100_pcie", "b200_bf16_ceperm"):
        (systems / f"{name}.json").write_text(json.dumps(machine))
    models = tmp_path / "configs" / "models"
    models.mkdir()
    (models / "plain_padding_128.json").write_text(json.dumps(_PLAIN))
    (models / "mixed.json").write_text(json.dumps({**_PLAIN, **_MIXED}))
    runs = tmp_path / RUNS
    runs.parent.mkdir(parents=True)
    said = {"layer_num": 4, "mbc": 8, "real_ms": 500, "perf_ms": 450, "real_alloc_gib": 40}
    rows = [
        {**said, "model": "plain", "parallel": "tp2cp2pp1", "case": "a_seq32768_b"},
        {**said, "model": "mixed", "parallel": "tp1ep4pp2", "case": "a"},
    ]
    runs.write_text(json.dumps({"rows": rows}))
    return tmp_path


_OPERATORS = ("matmul", "group_matmul", "sdp_fwd", "sdp_bwd", "default")
_NETWORKS = ("low_intra_node", "high_intra_node", "inter_node")
_PLAIN = {
    "hidden_size": 512,
    "head_num": 8,
    "kv_head_num": 4,
    "head_size": 64,
    "intermediate_size": 2048,
    "vocab_size": 1000,
    "use_swiglu": True,
}
_MIXED = {
    "expert_num": 16,
    "topk": 2,
    "moe_ffn_hidden_size": 256,
    "moe_shared_expert_intermediate_size": 512,
    "attention_type": "mla",
    "q_lora_rank": 96,
    "kv_lora_rank": 32,
    "qk_head_dim": 48,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 64,
}


def test_its_own_runs_are_a_table(checkout: Path) -> None:
    table = read_runs(checkout)
    j = table.jobs
    assert table.step_time_s.tolist() == [0.5, 0.5] and published_s(checkout).tolist() == [0.45] * 2
    assert table.peak_bytes.tolist() == [40 * GIB] * 2
    assert [
        *zip(
            j.layout.tp,
            j.layout.cp,
            j.layout.pp,
            j.layout.ep,
            j.layout.dp,
            j.layout.gas,
            strict=True,
        )
    ] == [(2, 2, 1, 1, 2, 8), (1, 1, 2, 4, 4, 8)]
    assert j.model.seq_length.tolist() == [
        32768,
        4096,
    ] and j.placement.optimizer_shard.tolist() == [4, 4]
    assert j.model.vocab_size.tolist() == [1024, 1024]  # of 256 and of 128 the next multiple
    assert j.model.mixture is not None and j.model.mixture.num_experts.tolist() == [0, 16]
    assert j.model.attention_size.tolist() == [512, 512]  # of 64 channels, and of 64 to each side


def test_a_machine_that_was_not_measured_has_the_measured_operators_at_its_peaks(
    checkout: Path,
) -> None:
    told = _system(checkout, Cluster.named("dgx_h100"))
    assert {op["tflops"] for op in told["accelerator"]["op"].values()} == {H100}
    assert told["networks"]["high_intra_node"]["bandwidth"]["gbps"] == 450
    assert told["networks"]["inter_node"]["bandwidth"]["gbps"] == 400
    with pytest.raises(InexpressibleError, match="without measured operators"):
        _system(checkout, Cluster.named("frontier"))


def test_a_checkout_of_before_its_runs_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"version 1\.2"):
        read_runs(tmp_path)


def test_rows_to_compare_are_those_that_ran_and_spread(tmp_path: Path) -> None:
    table = read_sweep(tmp_path, [row(), row(gas=8), row(), row(mbs=2), row()])
    table.step_time_s[1] = np.nan
    assert some(table, 9).tolist() == [True, False, True, True, True]
    assert np.flatnonzero(some(table, 2)).tolist() == [0, 4]


@pytest.mark.heavy
@pytest.mark.skipif(not CHECKOUT, reason="no checkout of SimuMax named by SIMUMAX")
def test_its_own_runs_are_predicted_as_it_publishes() -> None:
    table = read_runs(Path(CHECKOUT))
    found = predict(SimuMax(Path(CHECKOUT), fused_loss=True).fit(()), ask(table))
    assert np.abs(found.step_time_s / published_s(Path(CHECKOUT)) - 1).max() < 0.01
