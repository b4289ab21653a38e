"""``meshtune preflight``: from this machine to a file that ``cluster:`` can name."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.preflight.file import Preflight
from foundation.python import module_argv
from search_spaces import load_space
from slurm.launcher import LauncherError
from slurm.local.launcher import LocalLauncher
from slurm.srun.allocation import Allocation
from slurm.srun.launcher import SrunLauncher
from slurm.srun.site import Site
from support.preflight_results import preflight_result, written
from workflows.cli.main import main
from workflows.preflight import cluster_name, conclude, default_ranks


def test_this_machine_is_measured_and_a_space_can_be_priced_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    asked = ["--launcher", "local", "--ranks-per-node", "2", "--quick"]
    assert main(["preflight", "--out", str(out), *asked]) == 0
    assert "2 ranks on 1 node, stride 1" in capsys.readouterr().out
    machine = written(out.read_text())
    assert (machine.gpus_per_node, machine.nic) == (2, None)
    assert {c.operation for c in machine.measured} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"
    }  # fmt: skip
    assert machine.peak_fp32_tflops and machine.peak_bf16_tflops > 0
    space = tmp_path / "space.yaml"
    space.write_text(
        "version: 1\nmodel: tiny\ncluster: mine.yaml\ntrainer: {builtin: {data: python-source, "
        "device: cpu}}\nparameters: {tp: [1, 2], mbs: [1, 2], gas: 2}\n"
        "objective: {maximize: tokens_per_second}\n"
    )
    prediction = Pricing(load_space(space)).predict([{"tp": 2, "mbs": 1, "gas": 2}])
    assert np.isfinite(prediction.step_time_s).all() and prediction.time.tensor[0] > 0


def test_a_dry_run_prints_the_command_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "big.machine")
    assert main(["preflight", "--dry-run", "--quick"]) == 0
    command = shlex.split(capsys.readouterr().out)
    result = f"{tmp_path}/big_machine-preflight/result.json"
    assert command == [*module_argv("trainer.preflight", result, "--quick")]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--out", "mine.json"], 2, "suffix .yaml"),
        (["--out", "here.yaml"], 2, "here.yaml exists"),
        (["--out", "no/such/folder.yaml"], 2, "there is no folder no/such"),
        (["--launcher", "srun"], 1, "SLURM_JOB_ID"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "here.yaml").touch()
    assert main(["preflight", *arguments]) == code
    assert complaint in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["here.yaml"]


def test_an_unfinished_measurement_is_written_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = tmp_path / "result.json"
    partial = preflight_result(status="error", message="ended after gemm", collectives=[], copy=[])
    unfinished.write_text(json.dumps(partial))
    out = tmp_path / "hal.yaml"
    assert conclude(unfinished, out, "hal", "timeout: no progress for 300 s") == 1
    assert "# INCOMPLETE: timeout: no progress for 300 s" in out.read_text()
    assert written(out.read_text()).gemm_bf16_tflops == 700
    assert "incomplete: timeout" in capsys.readouterr().err


def test_a_measurement_of_nothing_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hal.yaml"
    empty = tmp_path / "result.json"
    empty.write_text(json.dumps({"status": "error", "message": "no ranks"}))
    for file in (empty, tmp_path / "missing.json"):
        assert conclude(file, out, "hal", "") == 1
        assert not out.exists()
    assert "nothing to write" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no matrix product"):
        Preflight(preflight_result(gemm=[]), "hal")


def test_slow_links_and_gpus_are_named_when_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = preflight_result()
    slow["collectives"][1]["seconds"] *= 20
    slow["gemm"][-1]["tflops"][9] = 400.0
    file = tmp_path / "result.json"
    file.write_text(json.dumps(slow))
    assert conclude(file, tmp_path / "hal.yaml", "hal", "") == 0
    warnings = [w for w in capsys.readouterr().err.splitlines() if w.startswith("warning: ")]
    assert len(warnings) == 2
    assert "plug-in" in warnings[0] and "local rank 1 on n2" in warnings[1]


@pytest.mark.parametrize(
    ("gres", "environ", "ranks"),
    [
        ("gpu:4", {}, 4),
        ("gpu:a100:8(S:0-1)", {}, 8),
        ("shard:32,gpu:mi250x:6,gpu:mi250:2", {}, 8),
        ("gpu:8", {"SLURM_GPUS_ON_NODE": "2"}, 2),  # the job has a part of the node
        ("(null)", {}, None),
        ("gpuless:3", {}, None),
    ],
)
def test_ranks_are_one_per_gpu_that_slurm_shows(
    gres: str, environ: dict[str, str], ranks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    answers = {
        "squeue -h -j 7 -o %i|%A|%T|%N|%C|%D|%L": "7|7|RUNNING|n[1-2]|16|2|UNLIMITED",
        "scontrol show hostnames n[1-2]": "n1\nn2",
        "scontrol show config": "BOOT_TIME               = 2026-01-01T00:00:00",
        "squeue -h -j 7 -o %i|%A|%S": "7|7|2026-01-02T00:00:00",
        "scontrol show node n1 -o": f"NodeName=n1 Arch=x86_64 Gres={gres} CfgTRES=cpu=8",
    }
    allocation = Allocation("7", lambda argv: answers[" ".join(argv)])
    launcher = SrunLauncher(Site.load("generic"), allocation)
    if ranks is not None:
        assert default_ranks(launcher, 2) == ranks
        return
    with pytest.raises(LauncherError, match="--ranks-per-node"):
        default_ranks(launcher, 2)


@pytest.mark.parametrize(("gpus", "ranks"), [("0,1,2,3", 2), ("", None)])
def test_nodes_played_by_this_machine_share_its_gpus_or_its_cores(
    gpus: str, ranks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    with closing(LocalLauncher(2)) as launcher:
        found = default_ranks(launcher, 2)
    assert found == ranks if ranks else found >= 1


def test_a_cluster_is_called_what_slurm_calls_it() -> None:
    assert cluster_name({"SLURM_CLUSTER_NAME": "frontier"}) == "frontier"
    assert cluster_name({})
