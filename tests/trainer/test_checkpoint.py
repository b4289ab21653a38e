"""Checkpoints: written under one layout, read under another, and whole whatever happens."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

from trainer.checkpoint.checkpoints import complete
from trainer.config import ConfigError, TrainConfig

WORKER = Path(__file__).with_name("checkpoint_worker.py")
Job = dict[str, Any]
RunPhases = Callable[..., dict[str, dict[str, Any]]]

STEPS = 3
"""Before the checkpoint, and again after it."""
GLOBAL_BATCH = 24
MODELS: dict[str, dict[str, Any]] = {
    # Sizes that no number of ranks but 2 and 4 divides.
    "gpt": {
        "num_layers": 4,
        "hidden_size": 36,
        "num_heads": 4,
        "vocab_size": 100,
        "seq_length": 12,
    },
    "llama": {
        "num_layers": 4,
        "hidden_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_hidden_size": 56,
        "vocab_size": 84,
        "seq_length": 12,
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "linear_bias": False,
        "tied_embeddings": False,
    },
}
_QUANTIZED = ("quantize_weights", "quantize_gradients", "quantize_secondary")
_TOPO = {"placement": "zero_topo", **dict.fromkeys(_QUANTIZED, False)}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {"gas": 2}),
    "tp2": (2, {"tp": 2, "sequence_parallel": True}),
    "zero0": (2, {"gas": 2}),
    "zero1 tp2": (4, {"tp": 2, "zero_stage": 1}),
    "zero2": (4, {"zero_stage": 2}),
    "zero3": (8, {"zero_stage": 3}),
    "zero3 dp3": (3, {"zero_stage": 3}),
    "hpz": (4, {"placement": "hpz", "ranks_per_node": 2, "gas": 2}),
    "mics tp2": (8, {"placement": "mics", "tp": 2, "sequence_parallel": True}),
    "topo": (8, {**_TOPO, "gas": 3}),
    "pp2 zero1": (4, {"pp": 2, "gas": 2, "zero_stage": 1}),
    "vpp2 tp2 zero3": (8, {"pp": 2, "vpp": 2, "tp": 2, "gas": 2, "zero_stage": 3}),
}


def config(
    ranks: int, model: str = "gpt", hidden_size: int | None = None, **values: Any
) -> dict[str, Any]:
    dp = ranks // values.get("tp", 1) // values.get("pp", 1)
    whole = {
        "model": MODELS[model] | ({"hidden_size": hidden_size} if hidden_size else {}),
        "data": "unused",
        "precision": "fp32",
        "warmup_steps": 0,
        "measured_steps": STEPS,
        "device": "cpu",
        "seed": 7,
        "ranks_per_node": 4 if ranks % 4 == 0 else ranks,
        "ranks_per_pair": 2 if ranks % 2 == 0 else 1,
        "optimizer": {"lr": 1e-2, "grad_clip": 0.5},
        "mbs": GLOBAL_BATCH // dp // values.get("gas", 1) or 1,
    }
    return {**whole, **values}


def job(name: str, ranks: int, action: str, options: dict[str, Any], **values: Any) -> Job:
    return {
        "id": name,
        "ranks": ranks,
        "config": config(ranks, **values),
        "options": {"action": action, **options},
    }


def job_of(ranks: int, action: str, **values: Any) -> Job:
    return job(f"{action} {ranks}", ranks, action, {}, **values)


def start_worker() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ask(worker: subprocess.Popen[str], phases: Sequence[list[Job]]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(phases) + "\n")
    worker.stdin.flush()


@pytest.fixture(scope="session")
def run_phases() -> Iterator[RunPhases]:
    """Runs phases of jobs (see ``checkpoint_worker``); results by job id."""
    with start_worker() as worker:

        def run(*phases: list[Job]) -> dict[str, dict[str, Any]]:
            ask(worker, phases)
            assert worker.stdout is not None
            answers = []
            for line in worker.stdout:
                answers.append(json.loads(line))
                if "code" in answers[-1]:
                    break
            assert answers and answers.pop().get("code") == 0, answers
            # A rank whose peer was killed may still say so: an error, which is no result.
            return {answer["id"]: answer["result"] for answer in answers if "result" in answer}

        yield run
        assert worker.stdin is not None
        worker.stdin.close()


def contents(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whole, as DCP itself reads them."""
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {name: torch.full(entry.size, torch.nan) for name, entry in saved.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    wrong = [name for name, value in found.items() if not torch.equal(value, expected[name])]
    assert not wrong, f"{len(wrong)} of {len(found)} tensors differ, such as {wrong[0]}"


def crossings(run_phases: RunPhases, folder: Path, cases: list[tuple[str, str, str]]) -> None:
    """Save under one layout, load under another: (model, from, to); check contents and losses."""
    folders = {key: folder / " ".join(key) for key in itertools.product(MODELS, LAYOUTS)}
    saving, loading = [], []
    for model in {model for model, _, _ in cases}:
        reference = job(model, 1, "train", {}, model=model, measured_steps=2 * STEPS)
        saving.append(reference)
    # Small chunks, so that matrices have many and copies take turns in saving them.
    small = {"chunk_elements": 1500}
    for model, before in dict.fromkeys((model, before) for model, before, _ in cases):
        ranks, values = LAYOUTS[before]
        where = str(folders[model, before])
        saving.append(
            job(f"{model} {before}", ranks, "train", small, model=model, save=where, **values)
        )
    for model, before, after in cases:
        ranks, values = LAYOUTS[after]
        name = f"{model} {before} > {after}"
        places = {"load": str(folders[model, before]), "save": str(folder / name)}
        other = {"chunk_elements": 2000}
        loading.append(job(name, ranks, "go_on", other, model=model, **places, **values))
    answers = run_phases(saving, loading)
    for model, before, after in cases:
        name = f"{model} {before} > {after}"
        whole, answer = answers[model]["losses"], answers[name]
        assert answer["first"] == STEPS
        assert answer["updates"] == [STEPS]
        assert answer["losses"] == pytest.approx(whole[STEPS:], rel=1e-6), name
        (copied,) = complete(folder / name).values()
        assert_same(contents(copied), contents(folders[model, before] / copied.name))


def test_any_layout_goes_on_from_any_other(run_phases: RunPhases, tmp_path: Path) -> None:
    """Each layout once loads what another saved, and once is loaded by another."""
    names = list(LAYOUTS)
    ring = [
        ("gpt" if number % 2 else "llama", before, names[(number + 5) % len(names)])
        for number, before in enumerate(names)
    ]
    crossings(run_phases, tmp_path, [*ring, ("gpt", "zero1 tp2", "zero1 tp2")])


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_goes_on_from_every_other(
    run_phases: RunPhases, tmp_path: Path, model: str
) -> None:
    every = [(model, *pair) for pair in itertools.product(LAYOUTS, LAYOUTS)]
    crossings(run_phases, tmp_path, every)


def test_a_trainer_that_turns_back_repeats_itself(run_phases: RunPhases, tmp_path: Path) -> None:
    """Nothing of the later weights stays: not whole ones, nor the secondary copy's."""
    placements = ("hpz", "zero_topo", "zero2")
    values = {"ranks_per_node": 2, "gas": 2}
    answers = run_phases(
        [
            job(name, 4, "turn_back", {}, placement=name, save=str(tmp_path / name), **values)
            for name in placements
        ]
    )
    for name in placements:
        assert answers[name]["again"] == answers[name]["onwards"], name
        assert len(set(answers[name]["again"])) == 3


def test_fp16_goes_on_with_its_loss_scale_and_its_number_of_updates(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    """The first steps overflow: fewer updates than steps, and a scale that none begins with."""
    fp16 = {"precision": "fp16", "measured_steps": 6}
    begin = {"initial_scale": 2.0**20}
    answers = run_phases(
        [
            job("whole", 2, "go_on", begin, **fp16 | {"measured_steps": 9}),
            job("before", 2, "train", begin, save=str(tmp_path), **fp16),
        ],
        [
            job("same", 2, "go_on", {}, load=str(tmp_path), **fp16 | {"measured_steps": 3}),
            job("tp", 2, "go_on", {}, load=str(tmp_path), tp=2, **fp16 | {"measured_steps": 3}),
            job("bf16", 2, "go_on", {}, load=str(tmp_path), precision="bf16"),
        ],
    )
    record = json.loads((tmp_path / "step-00000006" / "training.json").read_text())
    assert 0 < record["updates"] < 6
    assert record["good_steps"] == record["updates"]
    assert record["loss_scale"] == 2.0 ** (20 - 6 + record["updates"]) != 2.0**16
    for name in ("same", "tp"):
        answer = answers[name]
        assert (answer["scale"], answer["good_steps"]) == (record["loss_scale"], record["updates"])
        assert answer["updates"] == [record["updates"]]
    assert answers["same"]["losses"] == answers["whole"]["losses"][6:]
    assert answers["tp"]["losses"] == pytest.approx(answers["whole"]["losses"][6:], rel=1e-3)
    assert answers["bf16"]["scale"] == 1.0


def test_only_the_last_two_checkpoints_stay(run_phases: RunPhases, tmp_path: Path) -> None:
    broken = tmp_path / "step-00000099.0f0f0f0f.partial"
    broken.mkdir()
    (broken / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    values = {"save": str(tmp_path), "load": str(tmp_path)}
    answers = run_phases(
        [job("x", 2, "train", {}, measured_steps=7, save_interval=2, **values)],
        [job("y", 1, "train", {}, measured_steps=1, **values)],
    )
    saved = [line for line in answers["x"]["progress"] if line.startswith("saved")]
    assert saved == [f"saved {tmp_path}/step-0000000{step}" for step in (2, 4, 6, 7)]
    assert answers["y"]["progress"][0].startswith("step 8/8 ")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["notes.txt", "step-00000007", "step-00000008"]


def test_a_checkpoint_that_does_not_fit_is_refused_by_name_and_values(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    folder, empty, file = tmp_path / "a", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("")
    shape = MODELS["gpt"] | {"hidden_size": 40, "num_kv_heads": 2}
    damaged = tmp_path / "damaged" / "step-00000001"
    damaged.mkdir(parents=True)
    (damaged / "training.json").write_text('{"step"')
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "model": (
            {"load": str(folder), "model": shape},
            "model.hidden_size is 36 there and 40 here; model.num_kv_heads is 4 there and 2 here; "
            "model.ffn_hidden_size is 144 there and 160 here",
        ),
        "seed": ({"load": str(folder), "seed": 8}, "seed is 7 there and 8 here"),
        "nothing": ({"load": str(empty)}, f"load: {empty} has no complete checkpoint"),
        "nowhere": ({"load": f"{tmp_path}/b"}, f"load: {tmp_path}/b has no complete checkpoint"),
        "no folder": ({"load": str(file)}, f"load: {file}: Not a directory"),
        "no place": ({"save": f"{file}/b"}, f"save: {file}/b: Not a directory"),
        "taken": ({"save": str(folder)}, f"save: {folder} holds step 3, but this run begins at 0"),
        "damaged": ({"load": str(damaged.parent)}, f"cannot read {damaged}/training.json: "),
    }
    jobs = []
    for name, (values, _) in wrong.items():
        jobs.append(job(name, 2, "train", {}))
        jobs[-1]["config"] |= values
    answers = run_phases([job("a", 1, "train", {}, save=str(folder))], jobs)
    for name, (_, says) in wrong.items():
        assert says in answers[name]["says"], answers[name]
        expected = "CheckpointError" if name == "damaged" else "ConfigError"
        assert answers[name]["error"] == expected


def test_settings_of_checkpoints_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="save_interval 2 needs a folder: set save"):
        TrainConfig.parse(config(1, save_interval=2))
    with pytest.raises(ConfigError, match="engine deepspeed has no checkpoints"):
        TrainConfig.parse(config(1, load="x", engine="deepspeed"))


@pytest.mark.parametrize(("rank", "limit"), [(1, 50_000), (0, 100)], ids=["data", "record"])
def test_a_full_disk_is_one_clear_error_and_costs_no_earlier_checkpoint(
    run_phases: RunPhases, tmp_path: Path, rank: int, limit: int
) -> None:
    options = {"rank": rank, "bytes": limit}
    (answer,) = run_phases([job("x", 2, "full_disk", options, save=str(tmp_path))]).values()
    assert answer["says"].startswith(f"cannot save {tmp_path}/step-00000002: rank {rank}: ")
    assert "File too large" in answer["says"]
    assert "\n" not in answer["says"]
    assert answer["left"] == ["step-00000001"]
    assert list(complete(tmp_path)) == [1, 2]


EVENTS = {0: 20, 1: 3}
"""Things that ranks 0 and 1 do in the folder in one save."""


def test_a_rank_killed_at_any_moment_of_saving_costs_no_complete_checkpoint(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    moments = [(rank, event) for rank in EVENTS for event in range(1, EVENTS[rank] + 2)]
    folders = {(rank, event): tmp_path / f"{rank} {event}" for rank, event in moments}
    phases = [
        [job(folder.name, 2, "killed", {"rank": rank, "event": event}, save=str(folder))]
        for (rank, event), folder in folders.items()
    ]
    whole = {step: tmp_path / f"whole {step}" for step in (1, 2, 3)}
    undisturbed = [
        job(f"whole {step}", 2, "train", {}, save=str(folder), measured_steps=step)
        for step, folder in whole.items()
    ]
    answers = run_phases(undisturbed, *phases)
    expected = {
        step: (contents(path), (path / "training.json").read_text())
        for step, path in ((step, complete(folder)[step]) for step, folder in whole.items())
    }
    for (rank, event), folder in folders.items():
        survived = event > EVENTS[rank]
        assert (folder.name in answers) == survived, "EVENTS is not what a save does"
        found = complete(folder)
        latest = max(found)
        assert latest == 3 if survived else latest in (2, 3)
        assert latest - 1 in found, "the one before the last went too early"
        for step, path in found.items():
            assert (path / "training.json").read_text() == expected[step][1]
            assert_same(contents(path), expected[step][0])
    again = [
        job(folder.name, 1, "train", {}, measured_steps=1, save=str(folder), load=str(folder))
        for folder in list(folders.values())[2::6]
    ]
    run_phases(again)
    for name in (case["id"] for case in again):
        left = list((tmp_path / name).iterdir())
        assert len(left) == len(complete(tmp_path / name)) == 2


def test_all_ranks_killed_at_once_while_saving_leave_what_the_next_run_goes_on_from(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    values = {"zero_stage": 3, "hidden_size": 256, "optimizer": {"lr": 1e-3}}
    endless = {"save": str(tmp_path / "a"), "save_interval": 1, "measured_steps": 10_000}
    with start_worker() as worker:
        ask(worker, [[job_of(2, "train", **values, **endless)]])
        deadline = time.monotonic() + 200
        while not list((tmp_path / "a").glob("step-00000003.*.partial/*.distcp")):
            assert worker.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        worker.kill()  # and with it, by PR_SET_PDEATHSIG, its ranks
        assert worker.stdout is not None
        worker.stdout.read()  # until the last rank is gone
    latest = max(complete(tmp_path / "a"))
    assert latest in (2, 3)
    go_on = {"load": str(tmp_path / "a"), "measured_steps": 2}
    answers = run_phases(
        [
            job_of(1, "train", **values, measured_steps=latest + 2),
            job_of(2, "go_on", tp=2, **go_on, **values | {"zero_stage": 0}),
        ],
    )
    assert answers["go_on 2"]["first"] == latest
    whole = answers["train 1"]["losses"]
    assert answers["go_on 2"]["losses"] == pytest.approx(whole[latest:], rel=1e-6)
