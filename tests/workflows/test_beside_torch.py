"""The tutorial's space for a script of one's own, with ranks of whichever torch is installed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from analysis import read_run
from support import older_torch
from workflows.cli.main import main
from workflows.launching import OLDEST_TORCH, _release

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "first-search.md"
SCRIPT = """\
import argparse, os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
for name in ("--batch-size", "--accumulate", "--steps"):
    parser.add_argument(name, type=int)
given = parser.parse_args()
print("torch", torch.__version__)
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(given.steps):
    began = time.perf_counter()
    for _ in range(given.accumulate):
        loss = net(torch.rand(given.batch_size, 64)).square().mean()
        loss.backward()
    if dist.get_rank() == 0:
        took_ms = 1e3 * (time.perf_counter() - began)
        print(f"step {step} | loss {loss:.3f} | {took_ms:.1f} ms/step", flush=True)
assert dist.get_world_size() == 2
dist.barrier()  # else gloo ends one process in six by SIGABRT on a busy machine,
dist.destroy_process_group()
os._exit(0)  # and a few while the interpreter ends
"""


@pytest.mark.parametrize("torch", ["installed", "older"])
def test_the_tutorials_own_script_goes_from_nothing_to_a_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], torch: str
) -> None:
    for name, value in (older_torch.environment() if torch == "older" else {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    text = PAGE.read_text().split("## Your own script")[1].split("```yaml\n")[1].split("```")[0]
    text = text.replace("/home/me/train.py", str(tmp_path / "train.py"))
    space = yaml.safe_load(text) | {"trial": {"ranks_per_node": 2}, "finalists": False}
    space["budget"]["trials"] = 1
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    assert main(["search", "space.yaml", "--launcher", "local", "--no-report"]) == 0
    assert re.search(r"best: [\d,.]+ sequences/s, trial 1: ", capsys.readouterr().out)
    (trial,) = read_run(tmp_path / "runs/space").trials.values()
    assert trial.config["mbs"] * trial.config["gas"] * 2 == 64
    version = (tmp_path / "runs/space/trials/0001/stdout.log").read_text().split()[1]
    assert (_release(version) < _release(OLDEST_TORCH)) is (torch == "older")
