"""The price of training states in the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.cost.memory import GIB
from analysis.cost.model import CostModel, Prediction
from analysis.cost.state_exchanges import CPU_ADAM_BYTES_PER_S
from analysis.cost.state_memory import HOST_PROCESS_BYTES
from analysis.cost.time_constants import without_effect
from analysis.prediction.ranking import Ranking
from search_spaces import check, load_space
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from support.gpt_jobs import gpt
from trainer.plan.jobs import FULL, NONE, Jobs

PARAMETERS = 22e9  # of the 22B model, roughly


def predicted(jobs: Jobs, framework: str, **facts: Any) -> Prediction:
    cluster = Cluster.named("dgx_a100").model_copy(update=facts)
    return CostModel(cluster, framework_named(framework)).predict(jobs)


def sharded(zero_stage: int, **columns: Any) -> Jobs:
    return gpt(tp=1, dp=16, zero_stage=zero_stage, mbs=2, recompute=FULL, **columns)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_deepspeeds_states_leave_the_gpu_as_its_two_options_say(zero_stage: int) -> None:
    none, optimizer, both = (
        predicted(sharded(zero_stage, **on), "deepspeed-bf16")
        for on in (
            {},
            {"offload_optimizer": True},
            {"offload_optimizer": True, "offload_parameters": True},
        )
    )
    assert none.memory.optimizer[0] > 12 * PARAMETERS / 16 and not optimizer.memory.optimizer[0]
    # Whole gradients are summed on the GPU; split ones leave as they are reduced.
    assert bool(optimizer.memory.gradients[0]) == (zero_stage == 1)
    assert optimizer.memory.weights[0] == none.memory.weights[0] and not both.memory.weights[0]
    left = sum(getattr(none.memory, n) for n in ("weights", "gradients", "optimizer"))
    kept = sum(getattr(both.memory, n) for n in ("weights", "gradients", "optimizer"))
    assert both.host_bytes == pytest.approx(left - kept)
    assert not none.host_bytes.any()


def test_master_weights_take_the_optimizers_states_with_them() -> None:
    jobs = sharded(3, offload_parameters=True)
    fsdp, deepspeed = (predicted(jobs, name).memory for name in ("fsdp", "deepspeed-bf16"))
    assert fsdp.weights + fsdp.gradients + fsdp.optimizer == pytest.approx(0)
    assert not deepspeed.weights.any() and deepspeed.optimizer[0] > 12 * PARAMETERS / 16


def test_the_hosts_update_takes_its_traffic_and_copies_hide_behind_passes() -> None:
    jobs = sharded(2, gas=np.array([1, 8]), offload_optimizer=True)
    found = predicted(jobs, "deepspeed-bf16").time
    own = 8 * 30 * PARAMETERS / 16 / CPU_ADAM_BYTES_PER_S  # eight ranks of a node
    assert found.optimizer == pytest.approx(own, rel=0.1)
    weights_s = 2 * PARAMETERS / 16 / (0.8 * 31.5e9)
    on_device = predicted(sharded(2, gas=np.array([1, 8])), "deepspeed-bf16").time
    assert found.publish - on_device.publish == pytest.approx(weights_s, rel=0.1)
    slow, fast = (
        predicted(jobs, "deepspeed-bf16", host_link_gb_per_s=rate).time for rate in (2, 400)
    )
    hidden = fast.gradients - on_device.gradients
    assert (slow.gradients > found.gradients).all() and (hidden > 0).all()
    assert hidden[1] == pytest.approx(8 * hidden[0])  # after each micro-batch


def test_weights_are_loaded_before_both_passes_of_a_micro_batch() -> None:
    jobs, plain = (sharded(3, gas=np.array([1, 4]), offload_parameters=on) for on in (True, False))
    link = {"host_link_gb_per_s": 0.01}  # nothing of it can hide
    more = [
        a - b
        for a, b in zip(
            predicted(jobs, "deepspeed-bf16", **link).time.gather,
            predicted(plain, "deepspeed-bf16", **link).time.gather,
            strict=True,
        )
    ]
    assert more[0] == pytest.approx(2 * 2 * PARAMETERS / 16 / 0.008e9, rel=0.1)
    assert more[1] == pytest.approx(4 * more[0])


def test_torchtunes_published_run_of_70b_on_eight_gpus() -> None:
    # meta-pytorch/torchtune's README: 13.9 GiB and 1,568 tokens/s, compiled, of which nothing was
    # used to choose a constant.
    sizes = {"num_layers": 80, "hidden_size": 8192, "num_heads": 64, "ffn_size": 28672}
    more = {"kv_heads": 8, "gated": True, "vocab_size": 128256, "tied_embeddings": False}
    jobs = gpt(
        **sizes, **more, tp=1, dp=8, mbs=2, zero_stage=3, recompute=FULL, offload_parameters=True
    )
    habits = framework_named("torchtune").with_habits(compiled_layers=True, logits_bytes=0.25)
    found = CostModel(Cluster.named("dgx_a100"), habits).predict(jobs)
    assert found.model.reported_peak_bytes(jobs)[0] / GIB == pytest.approx(13.9, rel=0.1)
    assert 8 * 2 * 2048 / found.step_time_s[0] == pytest.approx(1568, rel=0.15)
    assert found.time.optimizer[0] > 0.3 * found.step_time_s[0]


def test_the_hosts_constant_is_learnt_from_jobs_that_offload_only() -> None:
    assert (
        without_effect(sharded(3)).sum() - without_effect(sharded(3, offload_optimizer=True)).sum()
        == 1
    )


def test_partitioned_inputs_are_split_over_tp_and_gathered_again() -> None:
    jobs = gpt(tp=4, recompute=np.array([FULL, NONE]), partition_activations=True)
    whole = gpt(tp=4, recompute=np.array([FULL, NONE]))
    apart, plain = (predicted(each, "megatron-lm") for each in (jobs, whole))
    saved = plain.memory.activations[0] - apart.memory.activations[0]
    assert saved == pytest.approx(48 * 4 * 2048 * 2 * 6144 * 3 / 4)  # 16-bit inputs of all layers
    assert apart.memory.activations[1] == plain.memory.activations[1]
    assert apart.time.tensor[0] > plain.time.tensor[0]
    assert apart.time.tensor[1] == plain.time.tensor[1]


def test_what_is_offloaded_must_fit_into_a_nodes_memory() -> None:
    jobs = sharded(3, offload_optimizer=True)
    held = predicted(jobs, "deepspeed-bf16").host_bytes[0]
    needed = 8 * (held + HOST_PROCESS_BYTES) / GIB
    tight, roomy, unstated = (
        predicted(jobs, "deepspeed-bf16", host_memory_gib=gib)
        for gib in (0.8 * needed, 2 * needed, None)
    )
    assert tight.fits[0] < 0.1 and tight.may_fit[0] < 0.1
    assert roomy.fits == pytest.approx(unstated.fits, abs=1e-3)
    # Nothing is offloaded, so the host's size does not matter.
    plain = predicted(sharded(3), "deepspeed-bf16", host_memory_gib=1.0)
    assert plain.fits == predicted(sharded(3), "deepspeed-bf16").fits


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_gradients_leave_a_single_gpu_too(zero_stage: int) -> None:
    """As in ZeRO-Offload's own runs: 10 billion parameters on one GPU of 32 GB."""
    ten = {"num_layers": 50, "hidden_size": 4096, "num_heads": 32, "seq_length": 1024}
    jobs = gpt(**ten, tp=1, mbs=1, zero_stage=zero_stage, recompute=FULL, offload_optimizer=True)
    cluster = Cluster.named("jean_zay_v100")
    found = CostModel(cluster, framework_named("deepspeed-bf16")).predict(jobs)
    assert not found.memory.gradients[0] and found.fits[0] > 0.5
    assert found.host_bytes[0] > 15 * 10e9


def test_a_host_that_is_too_small_is_told(tmp_path: Path) -> None:
    small = Cluster.named("dgx_a100").model_copy(update={"host_memory_gib": 64.0})
    (tmp_path / "small.yaml").write_text(small.model_dump_json(exclude_none=True))
    (tmp_path / "space.yaml").write_text(
        "version: 1\nmodel: gpt_22b\ncluster: small.yaml\n"
        "trainer: {command: [train, '{mbs}', '{gas}', '{zero_stage}']}\n"
        "parameters: {mbs: [1], gas: [1], zero_stage: 3, offload_optimizer: true, recompute: full}"
        "\nobjective: {maximize: tokens_per_second}\n"
    )
    space = load_space(str(tmp_path / "space.yaml"))
    told = Ranking.likely_to_fit(check(space))
    assert told.startswith("0 of 1 valid configurations are predicted to fit")
    assert "of a node's 64 GiB (host_memory_gib); offload less" in told
