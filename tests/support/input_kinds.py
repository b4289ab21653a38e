"""Every kind of file that people write, valid, with the commands that read it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm.mpiexec.hosts import HostsError, read_hostfile
from support.megatron_files import write_megatron
from support.sweep_rows import SWEEP, failed_row, row
from trainer.data.dataset import TokenDataset
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

Files = Mapping[str, str | bytes]

MODEL = """\
num_layers: 4
hidden_size: 64
num_heads: 4
num_kv_heads: 2
ffn_hidden_size: 128
vocab_size: 512
seq_length: 64
norm: rmsnorm
positions: rotary
activation: swiglu
linear_bias: false
tied_embeddings: true
rope_theta: 10000.0
name: toy
source: "made up"
"""
CLUSTER = """\
name: toy
source: made up
gpu: NVIDIA X100
num_nodes: 4
gpus_per_node: 4
cpus_per_node: 64
compute_units: 100
power_watts: 500
memory_gib: 16
memory_gb_per_s: 1000
peak_bf16_tflops: 300
peak_fp32_tflops: 20
gemm_bf16_tflops: 200
links:
  - {level: card, gpus: 2, gb_per_s: 200, latency_us: 5}
  - {level: node, gpus: 4, gb_per_s: 50, fully_connected: true}
nic: {count: 2, gb_per_s: 25, latency_us: 10}
host_link_gb_per_s: 30
measured:
  - {operation: all_reduce, gpus: 4, nodes: 1, size_mib: 64, bus_gb_per_s: 40}
  - {operation: any, gpus: 8, nodes: 2, stride: 1, size_mib: 64, bus_gb_per_s: 10}
"""
SPACE = """\
version: 1
name: toy
description: a space
model: model.yaml
cluster: cluster.yaml
trainer:
  builtin:
    data: python-source
    precision: bf16
    seed: 7
    optimizer: {lr: 0.001, beta1: 0.9}
    device_memory_bytes: 1000000000
    collective_timeout_s: 60
parameters:
  num_nodes: [1, 2]
  tp: {log2: [1, 4]}
  pp: [1, 2]
  mbs: {range: [1, 4]}
  gas: &counts [1, 2]
  vpp: *counts
  zero_stage: [0, 1]
conditions:
  vpp: pp > 1
constraints:
  - global_batch_size <= 64
  - tp * pp <= 8 or mbs in [1, 2]
objective:
  - maximize: tokens_per_second
  - minimize: num_nodes
trial: {warmup_steps: 1, measured_steps: 2, timeout: 20m, no_progress_timeout: 5m}
budget: {trials: 10, wall_time: 2h, node_hours: 3.5, expected_gain: 0.02, explore: 0.25}
finalists: {confidence: 0.9, max_repeats: 2}
failure_penalty: min
allow: [tp_across_nodes]
"""
OWN = """\
version: 1
model: model.yaml
cluster: cluster.yaml
trainer:
  command: [python, train.py, --tp, "{tp}", --out, "{trial_dir}/out", --cp, "{cp}"]
  framework: megatron-lm
  axes: [cp]
  env: {OMP_NUM_THREADS: "1"}
  result: {patterns: {speed: 'throughput: ([0-9.]+)'}}
parameters:
  tp: [1, 2]
  cp: [1, 2]
  mbs: [1, 2, 4]
  gas: 1
  flash: [false, true]
  lr: {range: [0.1, 0.3], step: 0.1}
conditions: {flash: tp > 1}
constraints: [mbs * tp <= 4]
objective: {maximize: speed}
"""
ADAPTED = """\
version: 1
cluster: cluster.yaml
trainer:
  adapter: adapter.yaml
  entry: train.py
  args: [--lr, "3e-4", --layers, "4", --save, out, --pp, "2"]
  config: own.json
parameters: {tp: [1, 2], mbs: [1, 2], recompute: [none, full]}
objective: {maximize: tokens_per_second}
"""
ADAPTER = """\
name: mine
source: made up
framework: fsdp
log: torchtitan
command: [python, "{entry}"]
options: --key value
file: {name: run.json, arguments: [--config, run.json], required: true}
settings:
  tp: {arguments: {tp: "{tp}"}}
  pp: {arguments: {pp: "{pp}"}}
  mbs: {arguments: {mbs: "{mbs}"}, environment: {BATCH: "{mbs}"}}
  recompute: [{when: recompute == 'full', file: {recompute.mode: full}}]
always: [{unless: [data], arguments: {fake: true}}]
conditions: {recompute: tp > 1}
constraints: {tp: [tp <= 2]}
dropped: [save]
model_in: file
model: {num_layers: model.layers, hidden_size: model.width, num_heads: model.heads,
        vocab_size: model.vocab, seq_length: {key: model.length, also: {model.rows: 3}},
        linear_bias: {key: model.bias, values: {"true": 1, "false": 0}, default: true}}
"""
ADAPTED_BASE = """\
{"model": {"layers": 4, "width": 64, "heads": 4, "vocab": 512, "length": 64, "bias": 0},
 "recompute": {"mode": "none", "every": [1, 2]}}
"""
HUGGING_FACE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "rope_theta": 5e5,
    "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 64},
    "sliding_window": None, "layer_types": ["full_attention"],
}  # fmt: skip
SITE = """\
source: the guide
gpus: per_task
cpus_per_rank: 8
srun_options: [--cpu-bind=cores]
env:
  NCCL_SOCKET_IFNAME: hsn0,hsn1
modules: [rocm, cray]
batch_options:
  - --constraint=gpu
max_concurrent_steps: 90
launch_interval_s: 0.2
"""
TRAIN = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 512,
              "seq_length": 32},
    "data": "tokens", "tp": 1, "pp": 1, "mbs": 1, "gas": 2, "zero_stage": 1, "precision": "fp32",
    "recompute": "none", "sequence_parallel": False, "seed": 3, "warmup_steps": 1,
    "measured_steps": 2, "collective_timeout_s": 60.0, "optimizer": {"lr": 0.001},
}  # fmt: skip
BEST = f"""\
# The best of 2 trials of "toy": trial 1.
meshtune_best: 1
objective: {{maximize: tokens_per_second, value: 1000.5}}
parameters: {{num_nodes: 1, tp: 2, pp: 1, mbs: 1, gas: 1, zero_stage: 0}}
num_nodes: 1
ranks_per_node: 4
train: {json.dumps(TRAIN)}
front:
  - trial: 1
    objectives: {{tokens_per_second: 1000.5, num_nodes: 1.0}}
env: {{NCCL_DEBUG: "WARN"}}
"""
BEST_COMMAND = """\
meshtune_best: 1
parameters: {tp: 2}
num_nodes: 1
ranks_per_node: 2
command: [echo, "{trial_dir}/out", --tp, '2']
env: {A: "1"}
"""
TABLE = "\n".join(
    ["# a source", SWEEP, row(), row(4, 2), row(mbs=2, gas=2), failed_row(mbs=4, gas=1)]
)
VTRAIN = """\
# a source
params_B,n_gpu,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iter_ms,gas
3.6,8,32,4,1024,16,24,1024,1,8,1,3566.5,1.0
3.6,8,32,2,1024,16,24,1024,1,8,1,3340.2,2.0
3.6,8,32,4,1024,16,24,1024,2,4,1,3140.2,2.0
"""
RESULTS = """\
trial,objective,p:tp,p:cp,p:mbs,p:gas,p:flash,p:lr,m:speed
0,10.5,1,1,1,1,,0.1,10.5
1,11.5,1,2,2,1,,0.2,11.5
2,F_oom,2,1,2,1,True,0.3,
"""
HOSTS = "# my nodes\nnode1 slots=4\nnode2:4  # the fat one\nnode3\nnode4 slots=2 max_slots=4\n"


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        file: its name.
        content: of a valid one.
        commands: what reads it, as arguments of ``meshtune``; each in the file's folder.
        reads: what reads it instead, from the file's path; raises ``ValueError`` of its own kind.
        others: files beside it.
        refused: the errors of ``reads``.
    """

    file: str
    content: str | bytes
    commands: Sequence[Sequence[str]] = ()
    reads: Callable[[Path], object] | None = None
    others: Files = field(default_factory=dict)
    refused: tuple[type[Exception], ...] = ()

    def write(self, folder: Path, data: bytes | None = None) -> Path:
        """The files, with ``data`` in place of the valid content; returns the file's path."""
        own = {self.file: self.content if data is None else data}
        for name, content in {**self.others, **own}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / self.file

    @property
    def data(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.encode()


def _train_config(path: Path) -> None:
    config = TrainConfig.read(path)
    config.check(world_size=8)


def _tokens(path: Path) -> None:
    data = TokenDataset(path.with_suffix(""), vocab_size=512)
    data.samples(0, 2, seq_length=8, seed=1)


def _megatron(suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_megatron(Path(folder) / "x", [[*range(100)], [1, 2, 3]], "uint16")
        return (Path(folder) / f"x{suffix}").read_bytes()


_SHAPES = {"model.yaml": MODEL, "cluster.yaml": CLUSTER}
_SPACE_COMMANDS = (
    ("check", "space.yaml"),
    ("predict", "space.yaml", "--top", "3", "--explain"),
    ("submit", "space.yaml", "--nodes", "2", "--time", "1:00:00", "--dry-run"),
)
_SEARCH = ("search", "space.yaml", "--launcher", "local", "--dry-run")
_ADAPTED = (("check", "space.yaml"), _SEARCH)
_OF_ADAPTER = {**_SHAPES, "space.yaml": ADAPTED, "adapter.yaml": ADAPTER, "own.json": ADAPTED_BASE}
_RANDOM = ("--policy", "random", "--seeds", "1")
_REPLAY = ("replay", "table.csv", *_RANDOM)
_TOKENS = {"tokens.idx": _megatron(".idx"), "tokens.bin": _megatron(".bin")}
_WITHOUT_A_SPACE = ("predict", "--model", "llama.json", "--cluster", "cluster.yaml", "--top", "3")
KINDS: dict[str, Kind] = {
    "space": Kind("space.yaml", SPACE, _SPACE_COMMANDS, others=_SHAPES),
    "space of a command": Kind("space.yaml", OWN, (*_SPACE_COMMANDS, _SEARCH), others=_SHAPES),
    "space of an adapter": Kind("space.yaml", ADAPTED, _ADAPTED, others=_OF_ADAPTER),
    "adapter": Kind("adapter.yaml", ADAPTER, _ADAPTED, others=_OF_ADAPTER),
    "file of an adapter": Kind("own.json", ADAPTED_BASE, _ADAPTED, others=_OF_ADAPTER),
    "model": Kind(
        "model.yaml", MODEL, _SPACE_COMMANDS[:2], others={**_SHAPES, "space.yaml": SPACE}
    ),
    "model of Hugging Face": Kind(
        "llama.json",
        json.dumps(HUGGING_FACE, indent=2),
        (_SPACE_COMMANDS[0], _WITHOUT_A_SPACE),
        others={**_SHAPES, "space.yaml": SPACE.replace("model.yaml", "llama.json")},
    ),
    "cluster": Kind(
        "cluster.yaml", CLUSTER, _SPACE_COMMANDS[:2], others={**_SHAPES, "space.yaml": SPACE}
    ),
    "site": Kind(
        "site.yaml",
        SITE,
        (
            (
                "submit",
                "tiny_cpu",
                "--nodes",
                "1",
                "--time",
                "9",
                "--site",
                "site.yaml",
                "--dry-run",
            ),
        ),
    ),
    "best": Kind(
        "run/report/best.yaml",
        BEST,
        (
            ("predict", "run/report/best.yaml", "--explain"),
            ("train", "run/report/best.yaml", "--dry-run"),
        ),
        others={"run/space.yaml": SPACE, "run/model.yaml": MODEL, "run/cluster.yaml": CLUSTER},
    ),
    "best command": Kind("best.yaml", BEST_COMMAND, (("train", "best.yaml", "--dry-run"),)),
    "sweep": Kind("table.csv", TABLE, (_REPLAY,)),
    "sweep with its own cluster": Kind(
        "cluster.yaml",
        CLUSTER,
        (_REPLAY,),
        others={"table.csv": TABLE.replace("H100-80GB", "cluster.yaml")},
    ),
    "vtrain": Kind("table.csv", VTRAIN, (_REPLAY,)),
    "results": Kind(
        "results.csv",
        RESULTS,
        (("replay", "results.csv", *_RANDOM),),
        others={**_SHAPES, "space.yaml": OWN},
    ),
    "configuration": Kind(
        "config.json", json.dumps(TRAIN, indent=1), reads=_train_config, refused=(ConfigError,)
    ),
    "index": Kind(
        "tokens.idx", _TOKENS["tokens.idx"], reads=_tokens, refused=(ConfigError,), others=_TOKENS
    ),
    "tokens": Kind(
        "tokens.bin", _TOKENS["tokens.bin"], reads=_tokens, refused=(ConfigError,), others=_TOKENS
    ),
    "hosts": Kind("hosts", HOSTS, reads=read_hostfile, refused=(HostsError,)),
}
