"""Spaces as the cost model sees them, and ``meshtune predict``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml

from analysis.cost.state_memory import rank_state_bytes
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import CPU_MEMORY, NotPricedError, Pricing
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space
from search_spaces.known import framework_named
from search_spaces.points.candidates import Candidates
from support.unit_exchanges import bytes_per_rank
from trainer.plan.axes.dp import dense_holders
from trainer.plan.config import TrainConfig
from trainer.plan.fields import RankOrder

MESHTUNE = framework_named("meshtune")


def test_a_space_is_priced_as_its_own_trials_would_be_placed() -> None:
    space = load_space("gpt_20b_zero_topo_frontier")
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(40, np.random.default_rng(0), [], 10**6)
    configs = candidates.configs(indices)
    prediction = pricing.predict(configs)
    for row, config in enumerate(configs):
        train = TrainConfig.parse(space.train_config(config, "none"))
        placement = train.place(space.facts(config)["world_size"], space.cluster.gpus_per_node)
        job = prediction.jobs[row : row + 1]
        own = rank_state_bytes(np.array([1e6]), job, MESHTUNE, dense_holders(job))
        expected = bytes_per_rank(placement, 1_000_000)
        assert sum(expected.values()) == pytest.approx(float(sum(own.values())[0]), rel=0.02)


def test_only_another_trainers_memory_is_in_doubt_before_a_search(tmp_path: Path) -> None:
    own = load_space("llama_8b_dgx_h100")
    content = yaml.safe_load(own.frozen())
    content["trainer"] = {"command": ["train", "config.json"]}
    known = ("tp", "pp", "mbs", "gas", "zero_stage")
    content["parameters"] = {k: v for k, v in content["parameters"].items() if k in known}
    content |= {"conditions": {}, "constraints": []}
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(content))
    for space, doubted in ((own, False), (load_space(file), True)):
        pricing = Pricing(space)
        before, after = pricing.model.memory, pricing.supposing().model.memory
        assert bool(after.habits) == doubted and not before.habits


def test_a_run_of_trials_moves_predictions_towards_its_times() -> None:
    space = load_space("llama_8b_dgx_h100")
    pricing, candidates = Pricing(space), Candidates(space)
    configs = candidates.draw(12, np.random.default_rng(1), [], 4)
    before = pricing.predict(configs)
    run = Run(Path("nowhere"))
    for number, config in enumerate(configs[:8]):
        slower = 1.4 * float(before.step_time_s[number])
        result = {"step_time_s": {"median": slower}}
        run.trials[number] = Trial(number, config, 0.0, kind="ok", objective=1.0, result=result)
    pricing.learn(run)
    after = pricing.predict(configs)
    ratio = after.step_time_s[8:] / before.step_time_s[8:]
    assert np.all(np.abs(ratio / 1.4 - 1) < 0.15)


def test_a_space_without_a_model_has_no_prices() -> None:
    with pytest.raises(NotPricedError, match="model"):
        Pricing(replace(load_space("llama_8b_dgx_h100"), model=None))


def engines(tmp_path: Path, name: str, values: Any, device: str = "cuda") -> Pricing:
    """A space of the built-in trainer that searches these engines."""
    content = {
        "version": 1,
        "model": "gpt_1_4b",
        "cluster": "dgx_a100",
        "trainer": {"builtin": {"data": "x", "device": device, "precision": "bf16"}},
        "parameters": {"engine": values, "mbs": [1, 2, 4], "gas": 4, "zero_stage": [1, 2]},
        "objective": {"maximize": "tokens_per_second"},
    }
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return Pricing(load_space(path))


def test_the_order_of_ranks_decides_what_crosses_nodes(tmp_path: Path) -> None:
    """Two nodes of eight: either two stages or eight replicas have a node for themselves."""
    content = {
        "version": 1,
        "model": "gpt_1_4b",
        "cluster": "dgx_a100",
        "trainer": {"builtin": {"data": "x", "precision": "bf16"}},
        "parameters": {
            "num_nodes": 2,
            "pp": 2,
            "rank_order": [*get_args(RankOrder)],
            "placement": ["zero1", "mics"],
            "mbs": 1,
            "gas": 4,
        },
        "objective": {"maximize": "tokens_per_second"},
    }
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump(content))
    space = load_space(path)
    pricing = Pricing(space)
    assert not unpriced_parameters(space)
    common = {"num_nodes": 2, "pp": 2, "mbs": 1, "gas": 4}
    rows = [
        {**common, "rank_order": order, "placement": placement}
        for placement in ("zero1", "mics")
        for order in get_args(RankOrder)
    ]
    found = pricing.predict(rows)
    outside, inside = range(2)
    assert found.time.pipeline[inside] < found.time.pipeline[outside]
    states = found.time.gradients + found.time.publish
    assert states[inside] > states[outside]
    # A node has a stage of all replicas, or both stages of half of them.
    assert found.jobs.placement.weight_shard.tolist() == [1, 1, 8, 4]
    for row, shard in zip(rows, found.jobs.placement.weight_shard, strict=True):
        train = TrainConfig.parse(space.train_config(row, "none"))
        assert train.place(16, 8).weight_shard == shard


def test_megatrons_order_of_ranks_is_priced_also_where_only_its_arguments_say_it(
    tmp_path: Path,
) -> None:
    times = []
    for args in ([], ["--use-tp-pp-dp-mapping"]):
        path = tmp_path / "megatron.yaml"
        path.write_text(
            "version: 1\nmodel: llama_8b\ncluster: dgx_h100\n"
            f"trainer: {{adapter: megatron-lm, args: {args}}}\n"
            "parameters: {num_nodes: 8, tp: 1, pp: 8, cp: [1, 2], mbs: 1, gas: 16, zero_stage: 1}\n"
            "objective: {maximize: tokens_per_second}\n"
        )
        space = load_space(path)
        config: dict[str, Any] = {name: p.values[0] for name, p in space.parameters.items()}
        assert space.first_violation(config) is None
        assert ("--use-tp-pp-dp-mapping" in space.command(config, "/t")) is bool(args)
        # Its own order keeps cp beside tp, which is neither of ours.
        assert (space.first_violation({**config, "cp": 2}) is None) is not bool(args)
        times.append(Pricing(space).predict([config]).time)
    outside, inside = times
    assert inside.pipeline[0] < outside.pipeline[0]
    assert inside.gradients[0] + inside.publish[0] > outside.gradients[0] + outside.publish[0]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_each_engines_trials_are_priced_as_that_engines(tmp_path: Path, device: str) -> None:
    both = engines(tmp_path, "both", ["deepspeed", "meshtune"], device)
    rows = Candidates(both.space).draw(100, np.random.default_rng(0), [], 8)
    assert {row["engine"] for row in rows} == {"deepspeed", "meshtune"}
    together = both.predict(rows)
    for engine in ("deepspeed", "meshtune"):
        own = [number for number, row in enumerate(rows) if row["engine"] == engine]
        alone = engines(tmp_path, engine, [engine], device).predict([rows[i] for i in own])
        assert alone.step_time_s.tolist() == together.step_time_s[own].tolist()
        assert alone.peak_bytes.tolist() == together.peak_bytes[own].tolist()
        assert alone.fits.tolist() == together.fits[own].tolist()
        for one, side in zip(alone.time_log_sds, together.time_log_sds, strict=True):
            assert one.tolist() == side[own].tolist()
    pairs = [{**rows[0], "engine": engine} for engine in ("deepspeed", "meshtune")]
    ours, theirs = both.predict(pairs).peak_bytes
    assert ours != theirs


def test_of_several_engines_no_rows_have_no_prices(tmp_path: Path) -> None:
    """As the successes of a search before its first trial."""
    nothing = engines(tmp_path, "both", ["deepspeed", "meshtune"]).predict([])
    assert nothing.step_time_s.size == nothing.peak_bytes.size == nothing.fits.size == 0


def test_masks_of_documents_have_a_price(tmp_path: Path) -> None:
    config = {"engine": "meshtune", "mbs": 2, "gas": 4, "zero_stage": 1}
    plain = engines(tmp_path, "plain", ["meshtune"])
    content = yaml.safe_load(Path(plain.space.file).read_text())
    found, cases = [], {"apart": {}, "together": {"reset_attention_mask": False}}
    content["trainer"]["builtin"]["precision"] = "fp32"  # packed documents are for 16 bits
    for name, said in {"plain": None, **cases}.items():
        if said is not None:
            content["trainer"]["builtin"]["documents"] = said
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        found.append(Pricing(load_space(path)).predict([config]))
    without, apart, together = (float(one.memory.activations[0]) for one in found)
    # As a stage is seen to keep it: test_the_mask_of_documents_is_kept_once.
    sequence = plain.space.model.seq_length
    assert apart - without == pytest.approx(2 * 4 * sequence**2, rel=0.1)
    assert together == without
    assert found[1].step_time_s[0] > found[0].step_time_s[0] == found[2].step_time_s[0]


def test_the_size_of_buckets_is_the_spaces_own(tmp_path: Path) -> None:
    config = {"engine": "meshtune", "mbs": 1, "gas": 4, "zero_stage": 2}
    plain = engines(tmp_path, "plain", ["meshtune"])
    content = yaml.safe_load(Path(plain.space.file).read_text())
    found = [plain.predict([config])]
    for size in (2**24, 2**30):  # the default, and more than the largest matrix
        content["trainer"]["builtin"]["ddp_bucket_size"] = size
        path = tmp_path / f"buckets_{size}.yaml"
        path.write_text(yaml.safe_dump(content))
        found.append(Pricing(load_space(path)).predict([config]))
    unsaid, usual, large = (float(one.peak_bytes[0]) for one in found)
    assert unsaid == usual < large


def test_a_limit_on_a_gpu_is_on_what_the_allocator_reserves(tmp_path: Path) -> None:
    """As ``trainer.runtime.memory.limit_memory`` sets it: the context is beside it."""
    config = {"engine": "meshtune", "mbs": 1, "gas": 4, "zero_stage": 1}
    fits = {}
    free = engines(tmp_path, "free", ["meshtune"])
    whole = free.predict([config])
    reserved, device = int(whole.memory.reserved[0]), free.space.cluster.memory_bytes
    assert reserved < whole.memory.total[0] < device
    for limit in (reserved // 2, reserved * 102 // 100, int(device)):
        content = yaml.safe_load(Path(free.space.file).read_text())
        content["trainer"]["builtin"]["device_memory_bytes"] = limit
        path = tmp_path / f"{limit}.yaml"
        path.write_text(yaml.safe_dump(content))
        limited = Pricing(load_space(path)).predict([config])
        fits[limit] = float(limited.fits[0])
        assert limited.memory.reserved[0] == pytest.approx(reserved)
    below, above, none = fits.values()
    # Room for what is reserved is enough, although the context needs more than 2 %.
    assert below < 0.01 and 0.5 < above < none == whole.fits[0]


def test_on_a_cpu_both_engines_have_the_hosts_memory(tmp_path: Path) -> None:
    searched = {"ours": ["meshtune"], "theirs": ["deepspeed"], "both": ["meshtune", "deepspeed"]}
    for name, values in searched.items():
        for model in engines(tmp_path, name, values, "cpu").model.engines:
            assert model.memory == CPU_MEMORY
            assert model.framework.name.endswith(" on CPU")
            assert not model.framework.flash_attention


def test_an_engine_learns_from_its_own_trials_only(tmp_path: Path) -> None:
    pricing = engines(tmp_path, "both", ["meshtune", "deepspeed"])
    rows = Candidates(pricing.space).draw(100, np.random.default_rng(0), [], 8)
    before, run = pricing.predict(rows), Run(Path("nowhere"))
    for number, row in enumerate(rows):
        if row["engine"] == "deepspeed":
            result = {"step_time_s": {"median": 1.5 * float(before.step_time_s[number])}}
            trial = Trial(number, row, 0.0, kind="ok", objective=1.0, result=result)
            run.trials[number] = trial
    pricing.learn(run)
    ratio = pricing.predict(rows).step_time_s / before.step_time_s
    theirs = np.array([row["engine"] == "deepspeed" for row in rows])
    assert np.all(ratio[~theirs] == 1) and np.all(np.abs(ratio[theirs] / 1.5 - 1) < 0.1)


@pytest.mark.parametrize("peak", [0, -5, float("nan"), 10**400, "much"])
def test_a_peak_that_no_device_can_have_teaches_nothing(peak: Any) -> None:
    """Zero is what torch reports for a GPU that it has not used."""
    space = load_space("llama_8b_dgx_h100")
    config = Candidates(space).draw(1, np.random.default_rng(1), [], 4)[0]
    costs = []
    for more in ({}, {"peak_memory_bytes": peak}):
        run, pricing = Run(Path("nowhere")), Pricing(space)
        result = {"step_time_s": {"median": 3.0}, **more}
        run.trials[1] = Trial(1, config, 0.0, kind="ok", objective=1.0, result=result)
        pricing.learn(run)
        costs.append(pricing.predict([config]).peak_bytes[0])
    assert costs[0] == costs[1]


def test_a_users_own_trainer_on_cpus_has_no_context_of_a_gpu(tmp_path: Path) -> None:
    content = yaml.safe_load(load_space("tiny_cpu").frozen())
    content["trainer"] = {"command": ["train", "config.json"]}
    known = ("tp", "pp", "mbs", "gas")
    content["parameters"] = {k: v for k, v in content["parameters"].items() if k in known}
    content |= {"conditions": {}, "constraints": []}
    peaks = []
    for units in (1, 132):
        content["cluster"]["compute_units"] = units
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump(content))
        config = {"tp": 1, "pp": 1, "mbs": 1, "gas": 4}
        peaks.append(Pricing(load_space(file)).predict([config]).memory.framework[0])
    assert peaks[0] < 0.05 * 2**30 < peaks[1]
