"""Whole runs of ``python -m trainer``: what they leave, and how their ranks leave."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.outcome.step_log import StepLog
from trainer.__main__ import main
from trainer.data.prepare import prepare_data, python_source_files
from trainer.run import run as run_alone
from trainer.runtime.exit_codes import (
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_OUT_OF_MEMORY,
    EXIT_PEER_FAILED,
    EXIT_STOPPED,
)

MB = 1_000_000


Config = dict[str, Any]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    prefix = tmp_path_factory.mktemp("data") / "python"
    prepare_data(python_source_files(max_bytes=200_000), prefix)
    return str(prefix)


@pytest.fixture
def config(data: str) -> Config:
    """Small enough for a second, large enough that every phase has memory of its own to take."""
    return {
        "model": {
            "num_layers": 2,
            "hidden_size": 256,
            "num_heads": 4,
            "vocab_size": 260,
            "seq_length": 64,
        },
        "data": data,
        "mbs": 8,
        "precision": "fp32",
        "device": "cpu",
        "warmup_steps": 1,
        "measured_steps": 2,
    }


def without(environ: dict[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(prefixes)}


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).parents[1] / "support/fork_ranks.py"
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=without(dict(os.environ), "SLURM_") | {"OMP_NUM_THREADS": "1"},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


class Ended:
    """What four ranks left."""

    def __init__(self, folder: Path, codes: list[int | None]) -> None:
        self.codes = codes
        self.stderr = "".join(path.read_text() for path in sorted(folder.glob("rank*.err")))
        path = folder / "result.json"
        self.result = json.loads(path.read_text()) if path.exists() else None
        self.drafts = [p.name for p in folder.iterdir() if p.name.startswith(".result")]


Run = Callable[..., Ended]


@pytest.fixture
def run(server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runs a configuration on four ranks; those named in ``other`` get one of their own."""

    def run(
        config: Config,
        other: dict[int, Config] | None = None,
        kill: tuple[Any, ...] | None = None,
        ranks: int = 4,
        **more: Any,
    ) -> Ended:
        paths = [tmp_path / "config.json"] * ranks
        paths[0].write_text(json.dumps(config))
        for rank, changed in (other or {}).items():
            paths[rank] = tmp_path / f"config{rank}.json"
            paths[rank].write_text(json.dumps(changed))
        job = {"configs": [str(p) for p in paths], "logs": str(tmp_path), "kill": kill, **more}
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        ended = Ended(tmp_path, json.loads(server.stdout.readline()))
        assert None not in ended.codes, f"a rank stayed: {ended.codes}\n{ended.stderr}"
        assert ended.drafts == []
        return ended

    return run


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_later(
    run: Run, config: Config, tmp_path: Path
) -> None:
    """One rank is asked, by SIGTERM; all save the same step, and the next run has all others."""
    folder = str(tmp_path / "saved")
    saving = config | {"save": folder, "load": folder, "metrics": {}, "warmup_steps": 0}
    ended = run(saving | {"measured_steps": 10_000}, kill=(2, "step 3/", "SIGTERM"))
    assert ended.codes == [EXIT_STOPPED] * 4
    assert ended.result is None
    assert f"stopped by SIGTERM; to go on: load: {folder}" in ended.stderr
    (saved,) = (tmp_path / "saved").iterdir()
    done = int(saved.name.removeprefix("step-"))
    assert done >= 3
    ended = run(saving | {"measured_steps": 2})
    assert ended.codes == [0] * 4
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, done + 3))
    assert [line["loss"] for line in lines[-2:]] == ended.result["loss"]


def test_validation_and_metrics_of_single_steps(run: Run, config: Config, tmp_path: Path) -> None:
    changes = {
        "validation": {"data": config["data"], "freq": 2},
        "metrics": {},
        "lr_scheduler": {"warmup_steps": 2},
    }
    ended = run(config | changes)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [line["loss"] for line in lines] == ended.result["loss"]
    assert [line["lr"] for line in lines] == pytest.approx([1.5e-4, 3e-4, 3e-4])
    assert all(line["tokens_per_second"] > 0 for line in lines)
    validated = ended.result["validation_loss"]
    assert {
        str(line["step"]): line["validation_loss"] for line in lines if "validation_loss" in line
    } == validated
    assert [*validated] == ["2", "3"]
    assert validated["3"] < validated["2"]


def test_without_its_package_a_writer_is_refused_before_the_first_step(
    run: Run, config: Config
) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    ended = run(config | {"metrics": {"enable_wandb": True}})
    assert ended.result["status"] == "invalid"
    assert "metrics.enable_wandb: the package wandb is not installed" in ended.result["message"]


def test_a_run_on_four_ranks_leaves_a_complete_result(run: Run, config: Config) -> None:
    ended = run(config | {"tp": 2, "mbs": 2, "gas": 3, "recompute": "full"})
    assert ended.codes == [0, 0, 0, 0]
    result = ended.result
    assert result["status"] == "ok"
    assert (result["world_size"], result["dp"], result["global_batch_size"]) == (4, 2, 12)
    assert len(result["loss"]) == len(result["grad_norm"]) == 3
    assert len(result["step_time_s"]["all"]) == 2
    assert result["loss"][0] == pytest.approx(5.6, abs=1.0)  # ln 257, and a little
    assert 0 < result["tflops_per_gpu"] < result["hardware_tflops_per_gpu"]
    assert result["tokens_per_second_per_gpu"] * 4 == pytest.approx(result["tokens_per_second"])
    assert 0 <= result["peak_memory_rank"] < 4
    weights_bytes = 4 * result["parameters"] / 2
    assert result["peak_memory_bytes"] > 3 * weights_bytes
    assert {"meshtune", "torch", "python"} <= result["versions"].keys()
    assert "Traceback" not in ended.stderr


# Most of what a rank holds at its peak. WIDE: weights, gradients and twice as much of moments,
# which come with the first optimizer step. DEEP: what the forward pass keeps of four layers.
# RECOMPUTED: what the backward pass keeps of the layer that it computes again, and the gradients.
WIDE = {"mbs": 1, "hidden_size": 640, "num_layers": 1}
DEEP = {"mbs": 32, "hidden_size": 128, "num_layers": 4}
RECOMPUTED = {"mbs": 128, "hidden_size": 128, "num_layers": 1, "recompute": "full"}


def shaped(config: Config, changes: Config) -> Config:
    """The configuration with changes, those of the model under their own names."""
    model = {k: changes.get(k, v) for k, v in config["model"].items()}
    return config | {k: v for k, v in changes.items() if k not in model} | {"model": model}


@pytest.mark.parametrize(
    ("share", "changes", "where"),
    [
        (0.0, {}, "build"),
        (0.3, WIDE, "build"),
        (0.5, DEEP, "forward"),
        (0.8, RECOMPUTED, "backward"),
        (0.8, WIDE, "optimizer"),
    ],
)
def test_running_out_of_memory_is_told_with_its_place(
    run: Run, config: Config, share: float, changes: Config, where: str
) -> None:
    """The limit is a share of the peak on this machine, whose libraries add bytes of their own."""
    whole = shaped(config, changes)
    limit_bytes = max(1, int(share * run(whole).result["peak_memory_bytes"]))
    ended = run(whole | {"device_memory_bytes": limit_bytes})
    assert set(ended.codes) <= {EXIT_OUT_OF_MEMORY, EXIT_PEER_FAILED}
    assert (ended.result["status"], ended.result["where"]) == ("oom", where)
    rank = ended.result["rank"]
    assert ended.codes[rank] == EXIT_OUT_OF_MEMORY
    assert f"rank {rank}: oom in {where}" in ended.stderr
    limit = f"limit {limit_bytes / 2**20:.1f} MiB"
    assert re.search(rf"\(private memory since start-up: peak .* MiB, {limit}\)", ended.stderr)
    # It was 1.1 MB above the limit once, under load, and 1 to 2 below else; why is not known.
    assert 0 <= ended.result["peak_memory_bytes"] <= limit_bytes + 4 * MB
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("changes", [{}, {"pp": 2, "gas": 2, "mbs": 4}], ids=["dp", "pp"])
def test_one_rank_without_memory_takes_its_peers_along(
    run: Run, config: Config, rank: int, changes: Config
) -> None:
    whole = config | changes
    ended = run(whole, other={rank: whole | {"device_memory_bytes": 16 * MB}})
    assert [code == EXIT_OUT_OF_MEMORY for code in ended.codes] == [r == rank for r in range(4)]
    assert set(ended.codes) == {EXIT_OUT_OF_MEMORY, EXIT_PEER_FAILED}
    assert (ended.result["status"], ended.result["rank"]) == ("oom", rank)


def test_the_peak_predicts_what_limit_is_enough(run: Run, config: Config) -> None:
    """Within 8 MB above: memory that is reserved but never touched; and 12 below: pages of the
    process that was forked count when they are written, and need no room of their own. (Two
    threads' stacks made up for them while dp had a group beside the world's.)"""
    peak = run(config).result["peak_memory_bytes"]
    assert run(config | {"device_memory_bytes": peak + 8 * MB}).result["status"] == "ok"
    assert run(config | {"device_memory_bytes": peak - 12 * MB}).result["status"] == "oom"


def test_a_killed_rank_takes_its_peers_along_and_leaves_the_verdict_to_the_launcher(
    run: Run, config: Config
) -> None:
    ended = run(config | {"measured_steps": 10_000}, kill=(3, "step 2/"))
    assert ended.codes[3] == -9
    assert set(ended.codes[:3]) <= {EXIT_FAILED, EXIT_PEER_FAILED}
    assert ended.result is None


def test_a_learning_rate_that_explodes_is_diverged_and_keeps_the_checkpoint_before_it(
    run: Run, config: Config, tmp_path: Path
) -> None:
    """Or the checkpoints of what follows, which nothing can resume from, would push it out."""
    more = {"save": str(tmp_path / "save"), "save_interval": 1, "keep_latest_k": 1}
    optimizer = {"lr": 1e38, "grad_clip": 0, "weight_decay": 0}
    ended = run(config | more | {"measured_steps": 50, "optimizer": optimizer})
    assert ended.codes == [EXIT_FAILED] * 4
    assert (ended.result["status"], ended.result["where"]) == ("diverged", "step 1")
    assert [finite is None for finite in ended.result["loss"]] == [False, True]
    assert [path.name for path in (tmp_path / "save").iterdir()] == ["step-00000001"]


def test_a_token_that_one_replica_meets_is_an_invalid_run(run: Run, config: Config) -> None:
    ended = run(shaped(config, {"vocab_size": 64}))
    assert EXIT_INVALID in ended.codes
    assert set(ended.codes) <= {EXIT_INVALID, EXIT_PEER_FAILED}
    assert ended.result["status"] == "invalid"
    assert "is not in the model's vocabulary of 64" in ended.result["message"]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tp": 3}, "tp 3 * pp 1 does not divide the number of ranks, 4"),
        ({"data": "/nowhere/x"}, "/nowhere/x.idx: there is no such file"),
        ({"mbs": 0}, "mbs: "),
    ],
)
def test_a_configuration_that_cannot_run_is_invalid_on_every_rank(
    run: Run, config: Config, changes: Config, says: str
) -> None:
    ended = run(config | changes)
    assert set(ended.codes) <= {EXIT_INVALID, EXIT_PEER_FAILED}
    assert ended.result["status"] == "invalid"
    assert says in ended.result["message"]
    assert "Traceback" not in ended.stderr


def test_an_earlier_result_does_not_pass_for_this_runs(
    run: Run, config: Config, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_text('{"status": "ok", "old": true}')
    assert run(config | {"device_memory_bytes": 1}).result["status"] == "oom"


def alone(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        env=without(dict(os.environ), "SLURM_", "RANK", "WORLD_SIZE") | environ,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_one_process_needs_no_environment(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"mbs": 2}))
    done = alone(str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("1 x cpu: tp 1")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "ok"
    log = StepLog(tmp_path / "said.log", None)
    (tmp_path / "said.log").write_text(done.stdout)
    assert log.grew()  # a search may read each step, the warm-up's first
    times_s = [step["step_time_s"] for step in log.steps]
    assert times_s[-len(result["step_time_s"]["all"]) :] == result["step_time_s"]["all"]
    assert [step["step"] for step in log.steps] == list(range(1, len(times_s) + 1))


def test_energy_is_read_around_the_measured_steps_alone(
    run: Run, config: Config, tmp_path: Path
) -> None:
    """Slurm's counter, which here rises by 100 J with each line of a step in the log."""
    tool = tmp_path / "bin/sstat"
    tool.parent.mkdir()
    steps = f"$(grep -c MESHTUNE_STEP {tmp_path}/rank0.out)"
    tool.write_text(f"#!/bin/sh\necho $((1 + 100 * {steps}))\n")
    tool.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    environ = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    ended = run(config | {"measured_steps": 3}, ranks=1, environ=environ, slurm_shortest_s=0.0)
    assert ended.codes == [0]
    result = ended.result
    assert result["energy_source"] in ("Slurm", "RAPL", "pm_counters")
    if result["energy_source"] == "Slurm":  # this machine has no nearer counter
        assert result["energy_joules"] == 300.0


@pytest.mark.parametrize(
    "content",
    [
        *(None, "", "{", "[]", '{"model": 3}', '{"nonsense": 1}'),
        *("[" * 100_000, "9" * 5000, '{"seed": NaN}', f'{{"{"k" * 5000}": "{"v" * 5000}"}}'),
        *('{"a": 1}' + " " * 1_000_001, '{"\\u001b[31m": 1}'),
    ],
    ids=range(12),
)
def test_a_bad_file_is_one_message_and_exit_code_2(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert run_alone(path, {}) == EXIT_INVALID
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}") and said.count("\n") == 1
    assert len(said) < 1500 and said.strip().isprintable()
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "invalid"
    assert str(path) in result["message"]


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == EXIT_INVALID
    said = capsys.readouterr().err
    assert "usage: python -m trainer" in said and "CONFIG.json" in said
