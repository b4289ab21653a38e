"""Checkpoints: written under one layout, read under another."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from support import huggingface_models
from support.checkpoint_cases import (
    GLOBAL_BATCH,
    MODELS,
    STEPS,
    RunPhases,
    assert_same,
    config,
    contents,
    job,
)
from trainer.checkpoint.folders import complete
from trainer.huggingface.names import config_of
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

_QUANTIZED = ("quantize_weights", "quantize_gradients", "quantize_secondary")


_TOPO = {"placement": "zero_topo", **dict.fromkeys(_QUANTIZED, False)}


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {"gas": 2}),
    "tp2": (2, {"tp": 2, "sequence_parallel": True}),
    "zero0": (2, {"gas": 2}),
    "zero1 tp2": (4, {"tp": 2, "zero_stage": 1}),
    "cp2 zero2": (4, {"cp": 2, "zero_stage": 2}),
    "zero3": (8, {"zero_stage": 3}),
    "zero3 dp3": (3, {"zero_stage": 3}),
    "hpz": (4, {"placement": "hpz", "ranks_per_node": 2, "gas": 2}),
    "mics tp2": (8, {"placement": "mics", "tp": 2, "sequence_parallel": True}),
    "topo": (8, {**_TOPO, "gas": 3}),
    "pp2 zero1": (4, {"pp": 2, "gas": 2, "zero_stage": 1}),
    "zbv zero1": (
        4,
        {"pp": 2, "vpp": 2, "gas": 2, "zero_stage": 1, "pipeline_schedule": "ZBVZeroBubble"},
    ),
    "grid": (8, {"gx": 2, "gy": 2, "gz": 2, "mbs": GLOBAL_BATCH}),
    "gy2 gz2 pp2": (8, {"gy": 2, "gz": 2, "pp": 2, "gas": 2, "mbs": GLOBAL_BATCH // 2}),
    "vpp2 tp2 zero3": (8, {"pp": 2, "vpp": 2, "tp": 2, "gas": 2, "zero_stage": 3}),
}
_MOVING = {"moe_router_bias_update_rate": 0.01}
OF_EXPERTS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, _MOVING),
    "ep2 zero1": (4, {"ep": 2, "zero_stage": 1, "gas": 2, **_MOVING}),
    "ep4 tp2 zero3": (
        4, {"ep": 4, "tp": 2, "sequence_parallel": True, "zero_stage": 3, **_MOVING}
    ),
    "ep2 cp2 pp2 zero3": (8, {"ep": 2, "cp": 2, "pp": 2, "gas": 2, "zero_stage": 3, **_MOVING}),
}  # fmt: skip
RING = (
    *("one", "zero1 tp2", "cp2 zero2", "zero3 dp3", "hpz", "topo", "zbv zero1", "grid"),
    "vpp2 tp2 zero3",
)


def crossings(run_phases: RunPhases, folder: Path, cases: list[tuple[str, str, str]]) -> None:
    """Save under one layout, load under another: (model, from, to); check contents and losses."""
    layouts = LAYOUTS | OF_EXPERTS
    folders = {(model, before): folder / f"{model} {before}" for model, before, _ in cases}
    saving, loading = [], []
    for model in {model for model, _, _ in cases}:
        more = _MOVING if "num_experts" in MODELS[model] else {}
        reference = job(model, 1, "train", {}, model=model, measured_steps=2 * STEPS, **more)
        saving.append(reference)
    # Small chunks, so that matrices have many and copies take turns in saving them.
    small = {"chunk_elements": 1500}
    for model, before in dict.fromkeys((model, before) for model, before, _ in cases):
        ranks, values = layouts[before]
        where = str(folders[model, before])
        saving.append(
            job(f"{model} {before}", ranks, "train", small, model=model, save=where, **values)
        )
    for model, before, after in cases:
        ranks, values = layouts[after]
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
    """Each kind of layout once loads what another saved, and once is loaded by another."""
    ring = [
        ("gpt" if number % 2 else "llama", before, RING[(number + 5) % len(RING)])
        for number, before in enumerate(RING)
    ]
    crossings(run_phases, tmp_path, [*ring, ("gpt", "zero1 tp2", "zero1 tp2")])


@pytest.mark.parametrize("model", ["moe", pytest.param("deepseek v3", marks=pytest.mark.heavy)])
def test_experts_and_their_routers_biases_go_on_under_another_ep(
    model: str, run_phases: RunPhases, tmp_path: Path
) -> None:
    ring = [*OF_EXPERTS]
    pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
    crossings(run_phases, tmp_path, [(model, *pair) for pair in pairs])
    (saved,) = complete(tmp_path / f"{model} alone").values()
    biases = {n: value for n, value in contents(saved).items() if n.endswith("router.bias")}
    assert len(biases) == MODELS[model]["num_layers"] - 1
    assert all(bias.abs().max() > 0 for bias in biases.values())


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_every_layout_goes_on_from_every_other(
    run_phases: RunPhases, tmp_path: Path, model: str
) -> None:
    every = [(model, *pair) for pair in itertools.product(LAYOUTS, LAYOUTS)]
    crossings(run_phases, tmp_path, every)


def test_another_global_batch_goes_on_with_the_next_sample(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    """Nothing is read twice and nothing left out, also from a run that changed it before."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    three = {"measured_steps": 3}
    answers = run_phases(
        [job("24 a step", 1, "train", {}, save=first, **three)],
        [job("20 a step", 1, "train", {}, mbs=5, gas=4, load=first, save=second, **three)],
        [job("6 a step", 2, "go_on", {}, mbs=1, gas=3, load=second, **three)],
        [job("whole", 1, "go_on", {}, mbs=3, gas=1, measured_steps=1, load=second)],
    )
    assert answers["6 a step"]["first"] == 6
    assert answers["6 a step"]["read"] == [132 + n for n in (0, 1, 2, 6, 7, 8, 12, 13, 14)]
    assert answers["whole"]["read"] == [132, 133, 134]


def test_checkpoints_that_are_written_beside_the_training_are_of_their_own_step(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    """The weights change while they are written, and both layouts save more than once."""
    every = {"save_interval": 1, "gas": 2, "zero_stage": 3}
    names = ("later", "at once")
    run_phases(
        [
            job(
                name, 2, "train", {}, save=str(tmp_path / name), async_save=name == "later", **every
            )
            for name in names
        ]
    )
    later, at_once = (complete(tmp_path / name) for name in names)
    assert [*later] == [*at_once] == [2, 3]
    for step in later:
        assert_same(contents(later[step]), contents(at_once[step]))
    assert not list(tmp_path.glob("*/*.partial"))


def test_every_layout_begins_from_the_same_weights_of_transformers(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    model = TrainConfig.parse(config(1, "llama")).model
    described = config_of(model)
    huggingface_models.write(tmp_path / "hf", described, huggingface_models.drawn(described))
    begin = {"model": "llama", "initial_load_path": str(tmp_path / "hf"), "measured_steps": 2}
    layouts = {
        "one": (1, {}),
        "mesh": (4, {"tp": 2, "pp": 2, "gas": 2, "zero_stage": 1}),
        "zero3": (3, {"zero_stage": 3}),
    }
    answers = run_phases(
        [job(name, ranks, "go_on", {}, **begin, **more) for name, (ranks, more) in layouts.items()]
    )
    for name in layouts:
        assert answers[name]["losses"] == pytest.approx(answers["one"]["losses"], rel=1e-6)


def test_a_schedule_goes_on_where_it_stopped(run_phases: RunPhases, tmp_path: Path) -> None:
    schedule = {"lr_scheduler": {"warmup_steps": 2, "total_steps": 6, "decay_ratio": 0.5}, "gas": 2}
    answers = run_phases(
        [
            job("whole", 1, "train", {}, measured_steps=6, **schedule),
            job("before", 1, "train", {}, save=str(tmp_path), **schedule),
        ],
        [job("after", 2, "go_on", {}, load=str(tmp_path), zero_stage=3, **schedule)],
    )
    assert answers["after"]["losses"] == pytest.approx(answers["whole"]["losses"][3:], rel=1e-6)


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
        "damaged": ({"load": str(damaged.parent)}, f"cannot read {damaged}: no checksums.json; "),
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
    with pytest.raises(ConfigError, match="engine deepspeed: load x: it has no checkpoints"):
        TrainConfig.parse(config(1, load="x", engine="deepspeed"))
