"""A search with one trial, whose winner is trained elastically."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from analysis import Ended, Journal, Opened, Proposed, RunFolder, Started
from search_spaces import load_space
from trainer.data.prepare import prepare_data

BATCH, SEQ = 8, 16
SPACE = """
version: 1
name: elastic
model: {name: small, num_layers: 2, hidden_size: 32, num_heads: 2, vocab_size: 264, seq_length: 16}
cluster: {name: toy, gpu: cpu, gpus_per_node: GPUS, memory_gib: 1, memory_gb_per_s: 10,
          peak_fp32_tflops: 0.05, overlap: 0.02, node_failures_per_day: 4, storage_gb_per_s: 1000,
          LINKS
          nic: {count: 1, gb_per_s: 1, latency_us: 500}}
trainer: {builtin: {data: DATA, precision: fp32, device: cpu, optimizer: {lr: 1.0e-4},
                    lr_scheduler: {warmup_steps: 4, total_steps: 100}}}
parameters: {num_nodes: [1, 2], tp: [1, 2], pp: [1, 2], mbs: [1, 2], gas: [1, 2, 4],
             zero_stage: [0, 1, 3]}
constraints: [global_batch_size == 8]
objective: {maximize: tokens_per_second}
trial: {warmup_steps: 1, measured_steps: 2, timeout: 300s}
"""
LINKS = "links: [{level: node, gpus: 2, gb_per_s: 1, latency_us: 500}],"
BEST = {"num_nodes": 2, "tp": 1, "pp": 1, "mbs": 2, "gas": 1, "zero_stage": 1}


def searched(folder: Path, hidden_size: int = 32, gpus_per_node: int = 2) -> Path:
    """A run of one trial on two nodes, which was the best; returns its folder."""
    file, text, data = folder / "elastic.yaml", folder / "text", folder / "tokens"
    text.write_text("".join(f"{n} is {n * n % 97}. " for n in range(2000)))
    prepare_data([text], data)
    space_text = SPACE.replace("DATA", str(data)).replace("GPUS", str(gpus_per_node))
    space_text = space_text.replace("LINKS", LINKS if gpus_per_node > 1 else "")
    file.write_text(space_text.replace("hidden_size: 32", f"hidden_size: {hidden_size}"))
    space, run = load_space(file), RunFolder(folder / "run")
    run.create(space)
    with closing(Journal(run.path)) as journal:
        goal = {"maximize": "tokens_per_second"}
        of = {"space": space.name, "fingerprint": space.fingerprint, "launcher": "local"}
        journal.write(Opened(seed=0, objective=goal, **of))
        journal.write(Proposed(trial=1, config={**BEST, "gas": 2 // gpus_per_node}))
        journal.write(Started(trial=1, attempt=1, name="x", nodes=("a", "b")))
        journal.write(
            Ended(
                trial=1, attempt=1, kind="ok", objective=4000.0, message="", elapsed_s=9.0,
                result={"step_time_s": {"median": BATCH * SEQ / 4000}}, final=True, steps=3,
            )
        )  # fmt: skip
    return run.path


def losses(out: Path) -> dict[int, float]:
    """Loss of each step of a training; every step is there once."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["loss"] for line in lines}
    assert [line["step"] for line in lines] == list(range(1, len(found) + 1))
    return found
