"""``meshtune verify-gpu``: it goes on where it ended, and says what to fix."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from foundation.files import FileError
from search_spaces.load import load_space
from trainer.verify.plan import Check, planned
from workflows import main, verify_gpu
from workflows.verify_gpu import judged, limited, verify

CHECKS = [
    Check("device", 1, "facts", 60, "check the driver"),
    Check("nonsense", 1, "nonsense", 60, "do not search over it"),
    Check("later", 2, "facts", 60, ""),
]


def test_results_are_kept_one_by_one_and_good_ones_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with the list of what to fix, whichever part found it."""
    monkeypatch.setattr(verify_gpu, "planned", lambda gpus: iter(CHECKS))
    out, said = tmp_path / "gpu.json", []
    (wrong,) = verify(out, "cpu", (1,), said.append)
    assert wrong.startswith("nonsense: ") and wrong.endswith("remedy: do not search over it")
    first = json.loads(out.read_text())["checks"]
    assert [*first] == ["device", "nonsense"]
    assert [line.split()[2] for line in said] == ["ok", "wrong"]
    assert main(["verify-gpu", "--out", str(out), "--device", "cpu", "--part", "2"]) == 1
    assert "remedy: do not search over it" in capsys.readouterr().out
    second = json.loads(out.read_text())["checks"]
    assert second["device"] == first["device"] and second["later"]["status"] == "ok"
    again = len(said)
    assert verify(out, "cpu", (1, 2), said.append) == [wrong]  # the bad one is tried again
    assert [line.split()[2] for line in said[again:]] == ["ok", "wrong", "ok"]


def test_without_a_gpu_it_says_what_helps(tmp_path: Path, capsys) -> None:
    assert main(["verify-gpu", "--out", str(tmp_path / "gpu.json")]) == 2
    said = capsys.readouterr().err
    assert "install the build for this cluster's GPUs" in said and "Traceback" not in said


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    out.write_text('{"a": 1}')
    with pytest.raises(FileError, match="no file of verify-gpu"):
        verify(out, "cpu", (1,))
    assert out.read_text() == '{"a": 1}'


def test_a_check_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    code, stdout, _ = limited([sys.executable, "-c", child], 1.0)
    assert code is None and stdout == ""


def test_layouts_whose_losses_differ_and_trials_that_fail_are_wrong() -> None:
    layouts = Check("layouts", 4, "layouts", 60, "")
    same = [{"status": "ok", "loss": [3.0, 2.0]}, {"status": "oom", "message": "too large"}]
    assert judged(layouts, same)["status"] == "ok"
    assert "from 2.0 to 2.1" in judged(layouts, [*same, {"status": "ok", "loss": [2.1]}])["message"]
    failed = [*same, {"status": "error", "message": "no NCCL"}]
    assert judged(layouts, failed)["message"] == "1 of 3 trials failed: no NCCL"
    assert "none ran" in judged(layouts, [])["message"]
    wide = replace(layouts, tolerance=0.1)
    assert judged(wide, [*same, {"status": "ok", "loss": [2.1]}])["status"] == "ok"
    assert judged(wide, [*same, {"status": "ok", "loss": [2.3]}])["status"] == "wrong"


FACTS = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30, "type": "cuda"}


def test_products_of_async_tp_have_more_rows_than_torch_gathers_by_multicast() -> None:
    """Or another path would run than in real jobs; each precision has its tolerance."""
    checks = [check for check in planned(2) if "async_tp" in check.settings]
    precisions = {}
    for check in checks:
        document = verify_gpu.space(check, "cuda", FACTS)
        own = document["parameters"]
        assert own["mbs"] * document["model"]["seq_length"] > 2048
        assert own["async_tp"] == [False, True] and own["tp"] == 2
        assert load_space(document)
        precisions[own["precision"]] = check.tolerance
    assert precisions == {"fp32": 1e-4, "bf16": 0.001}


@pytest.mark.heavy
@pytest.mark.parametrize("part", [3, 4])
def test_the_long_parts_run_on_the_cpu_with_toy_shapes(tmp_path: Path, part: int) -> None:
    assert verify(tmp_path / "gpu.json", "cpu", (part,)) == []
