"""Training scripts of users' own, each tuned by a space of at most 15 lines and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from analysis import read_run
from support.small_search import QUICK
from workflows.cli.main import main

DDP = """
import argparse, os, time, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--steps", type=int)
args = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, args.steps + 1):
    start = time.perf_counter()
    loss = model(torch.randn(args.batch_size, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        took_ms = 1e3 * (time.perf_counter() - start)
        print(f"step {step} loss {loss.item():.4f} step time: {took_ms:.2f} ms", flush=True)
dist.barrier()  # else gloo ends one process in six by SIGABRT on a busy machine,
dist.destroy_process_group()
os._exit(0)  # and a few while the interpreter ends
"""
ACCELERATE = """
import argparse, time, torch
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--steps", type=int)
args = parser.parse_args()
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2 and accelerator.gradient_accumulation_steps == 2
model = torch.nn.Linear(64, 64)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
step, start = 0, time.perf_counter()
while step < args.steps:
    with accelerator.accumulate(model):
        loss = model(torch.randn(args.batch_size, 64)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        step, now = step + 1, time.perf_counter()
        accelerator.print(f"step {step} step time: {1e3 * (now - start):.2f} ms", flush=True)
        start = now
"""
LIGHTNING = """
import argparse, torch, lightning
parser = argparse.ArgumentParser()
for name in ("batch-size", "steps", "accumulate", "devices", "nodes"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=args.batch_size)
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=args.devices, num_nodes=args.nodes,
    max_steps=args.steps, accumulate_grad_batches=args.accumulate,
    logger=False, enable_checkpointing=False,
)
assert trainer.world_size == 2
trainer.fit(Model(), data)
"""
SPACE = """\
version: 1
cluster: {name: here, gpus_per_node: 2, memory_gib: 4, peak_fp32_tflops: 1}
trainer:
  TRAINER
  args: [--batch-size, "{mbs}", --steps, "{warmup_steps + measured_steps}"]
  result: {patterns: {step_time_s: 'step time: ([0-9.]+)'}}
parameters: {mbs: [4, 8], gas: 2}
objective: {maximize: samples_per_second}
trial: {warmup_steps: 1, measured_steps: 3}
budget: {trials: 1}
finalists: {max_repeats: 1}
"""


SCRIPTS = {"ddp": DDP, "accelerate": ACCELERATE, "lightning": LIGHTNING}


SLOW = [pytest.mark.heavy, pytest.mark.timeout(900)]  # to import, minutes on a busy machine


@pytest.mark.parametrize("name", ["ddp", "accelerate", pytest.param("lightning", marks=SLOW)])
def test_a_script_is_tuned_by_a_short_space(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "ddp":
        pytest.importorskip(name, reason=f"needs {name}")
    script = SCRIPTS[name]
    space = SPACE.replace("TRAINER", f"adapter: {name}\n  entry: train.py")
    if name == "ddp":
        space = space.replace(
            "adapter: ddp\n  entry: train.py\n  args: [", "command: [python, train.py, "
        )
    if name == "lightning":  # its progress bar is read
        own = '--accumulate, "{gas}", --devices, "{gpus_per_node}", --nodes, "{num_nodes}", '
        lines = [line for line in space.splitlines(keepends=True) if "result:" not in line]
        space = "".join(lines).replace("args: [", f"args: [{own}")
    assert len(space.splitlines()) <= 15
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "space.yaml").write_text(space)
    run = tmp_path / "run"
    assert main(["search", str(tmp_path / "space.yaml"), "--run-dir", str(run), *QUICK]) == 0
    [trial] = read_run(run).trials.values()
    assert trial.result is not None, trial
    sequences = 2 * 2 * trial.config["mbs"]  # of two ranks, two micro-batches each
    for found in (attempt.result for attempt in trial.attempts):  # a trial's are their means
        seconds = found["step_time_s"]["median"]
        assert found["samples_per_second"] == pytest.approx(sequences / seconds)
