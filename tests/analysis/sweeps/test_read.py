"""Tables of measured runs are recognised by their columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.cost.compute import is_flash
from analysis.sweeps.read import read_tables
from analysis.sweeps.record import TableError
from search_spaces.known import framework_named
from support.sweep_rows import SWEEP, changed, failed_row, read_sweep, row, sweep
from trainer.plan.jobs import FULL, SELECTIVE


def test_a_sweep_is_read_by_its_columns(tmp_path: Path) -> None:
    table = read_sweep(tmp_path, [row(), failed_row(mbs=2, gas=2)])
    assert table.form == "sweep" and list(table.framework) == ["nanotron"] * 2
    assert table.step_time_s[0] == pytest.approx(32 * 4096 / 1000)
    assert table.peak_bytes[0] == 10 * 2**30
    assert np.isnan(table.step_time_s[1]) and list(table.failed) == [False, True]
    assert table.clusters["dgx_h100"].memory_gib == 80


def test_optional_columns_of_a_sweep_are_read(tmp_path: Path) -> None:
    columns = SWEEP + ",recompute,sequence_parallel,framework"
    options = [",full,0,Megatron-LM", ",selective,1,", ",,,In house"]
    rows = [row(4, 2) + option for option in options]
    (table,) = read_tables(sweep(tmp_path / "a.csv", rows, columns))
    assert list(table.jobs.options.recompute) == [FULL, SELECTIVE, 0]
    assert list(table.jobs.options.sequence_parallel) == [False, True, True]
    assert list(table.framework) == ["megatron-lm", "nanotron", "in-house"]


def test_modules_that_are_recomputed_are_a_column_with_spaces_or_commas(tmp_path: Path) -> None:
    columns = SWEEP + ",recompute,recompute_modules"
    told = ("selective,MLP moe_act", "selective,", 'selective,"mlp,moe"', "none,none")
    rows = [f"{row(4, 2)},{each}" for each in told]
    (table,) = read_tables(sweep(tmp_path / "a.csv", rows, columns))
    modules = table.jobs.options.recompute_modules.tolist()
    assert modules == ["mlp,moe_act", "none", "mlp,moe", "none"]
    assert table.jobs.repeats("moe").tolist() == [False, False, True, False]
    wrong = sweep(tmp_path / "b.csv", [row(4, 2) + ",full,mlps"], columns)
    with pytest.raises(TableError, match=r"b\.csv:3: recompute_modules is 'mlps', accepted core_"):
        read_tables(wrong)
    for told in ("none moe", "none none"):
        both = sweep(tmp_path / "c.csv", [row(4, 2) + f",full,{told}"], columns)
        with pytest.raises(TableError, match=f"recompute_modules is '{told}', .* or none alone"):
            read_tables(both)
    rows = [f"{row(4, 2)},{each}" for each in ("mlp moe_act", "none", "")]
    (table,) = read_tables(sweep(tmp_path / "d.csv", rows, SWEEP + ",recompute_modules"))
    assert table.jobs.options.recompute.tolist() == [SELECTIVE, 0, 0]


def test_degrees_kernels_experts_and_habits_are_columns_as_well(tmp_path: Path) -> None:
    columns = SWEEP.replace("tok_s", "tokens_per_second").replace("crashed_or_oom", "out_of_memory")
    columns += ",cp,sp,vpp,head_dim,precision,liger,attn,experts,experts_per_token,expert_ffn"
    columns += ",shared_ffn,dense_layers,gradient_bytes,flash_attention"
    wide = row(4, 2).replace(",1,8,4,2,1,", ",1,32,4,2,1,")
    rows = [
        wide + ",2,2,1,128,fp8,1,FA3,8,2,1024,,,2,",
        row(4, 2) + ",1,1,2,64,bf16,0,eager,,,,,,,true",
    ]
    (table,) = read_tables(sweep(tmp_path / "a.csv", rows, columns))
    assert len(table) == 2 and np.isfinite(table.step_time_s).all()
    j = table.jobs
    assert j.layout.cp.tolist() == [4, 1] and j.layout.vpp.tolist() == [1, 2]
    assert j.model.head_dim.tolist() == [128, 64]
    assert j.options.fp8.tolist() == j.options.chunked_loss.tolist() == [True, False]
    assert is_flash(j, framework_named("fsdp")).tolist() == [True, False]
    assert j.model.mixture is not None
    assert j.model.mixture.num_experts.tolist() == [8, 0]
    assert table.habits["gradient_bytes"].tolist() == [2, None]
    assert table[1:].habits["flash_attention"].tolist() == [True]
    wrong = sweep(tmp_path / "b.csv", [row() + ",two"], SWEEP + ",gradient_bytes")
    with pytest.raises(
        TableError, match=r"b\.csv:3: gradient_bytes is 'two', accepted nothing, or"
    ):
        read_tables(wrong)


def test_flags_are_words_or_digits(tmp_path: Path) -> None:
    path = sweep(tmp_path / "a.csv", [changed(gated="true", crashed_or_oom="False")])
    (table,) = read_tables(path)
    assert table.jobs.model.gated.all() and not table.failed.any()


def test_a_row_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    wrong = row().replace(",32,1,1000", ",33,1,1000")
    table = read_sweep(tmp_path, [row(), wrong])
    assert len(table) == 1
    assert dict(table.left_out) == {"mbs * gas * dp is not the global batch": 1}


def test_columns_of_no_known_form_are_named_with_those_that_lack(tmp_path: Path) -> None:
    path = sweep(tmp_path / "h100_nanotron_sweep.csv", ["1,2"], "a,b")
    with pytest.raises(TableError, match=r"no known form .* columns a, b, .* lacks .*tok_s"):
        read_tables(path)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_whose_columns_other_characters_separate_is_told(
    tmp_path: Path, separator: str
) -> None:
    path = sweep(tmp_path / "sweep.csv", [separator.join(("1,5", "2,5"))], separator.join("ab"))
    with pytest.raises(TableError, match=r"csv:\d: found .*; put commas between columns$"):
        read_tables(path)


def test_empty_rows_at_the_end_of_a_sheet_are_no_trials(tmp_path: Path) -> None:
    (table,) = read_tables(sweep(tmp_path / "a.csv", [row(4, 2), "," * SWEEP.count(",")]))
    assert len(table) == 1


def test_columns_that_vary_and_mean_nothing_are_named(tmp_path: Path) -> None:
    columns = SWEEP + ",attn,gradient_bytes,compile,host"
    rows = [f"{row(4, 2)},sdpa,4,{flag},n1" for flag in "01"]
    (table,) = read_tables(sweep(tmp_path / "a.csv", rows, columns))
    assert table.unread == ("compile",)
