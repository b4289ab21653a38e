"""Numbers of log lines, in the unit that their metric's key names."""

from __future__ import annotations

import math
import re

import pytest

from slurm.logs.quantities import Context, QuantityError, check_unit, quantity


def read(metric: str, pattern: str, line: str, unit: str | None = None, gpus: int = 8) -> float:
    found = re.search(pattern, line)
    assert found, "the test's own pattern must match"
    beside = Context(line[: found.start(1)], line[found.end(1) :])
    return quantity(found[1], beside, metric, unit, gpus)


NUMBER = r"([0-9.,]+)"


@pytest.mark.parametrize(
    ("metric", "pattern", "line", "value"),
    [
        # The suffix may be inside the group or behind it.
        ("tokens_per_second", rf"tokens_per_sec: {NUMBER}", "| tokens_per_sec: 3.36K | x", 3360),
        ("tokens_per_second", r"tokens_per_sec: (\S+)", "| tokens_per_sec: 3.36K | x", 3360),
        (
            "step_time_s",
            rf"time_per_iteration_ms: {NUMBER}",
            "time_per_iteration_ms: 11.5K |",
            11.5,
        ),
        (
            "step_time_s",
            rf"iteration \(ms\): {NUMBER}",
            "elapsed time per iteration (ms): 812.5 |",
            0.8125,
        ),
        ("step_time_s", rf"time {NUMBER}", "iter 3: loss 2.1, time 93.25ms, mfu 3 %", 0.09325),
        ("step_time_s", rf"time: {NUMBER}", "iter time: 0.93 s | loss: 2", 0.93),
        ("step_time_s", rf"time: {NUMBER}", "step time: 1.5", 1.5),
        ("step_time_s", rf"{NUMBER}s/it", "7/10 [00:12<00:05,  2.31s/it]", 2.31),
        (
            "tokens_per_second",
            rf"tps: {NUMBER}",
            "memory: 12.30GiB(15%)  tps: 3,360  tflops: 20",
            3360,
        ),
        ("tokens_per_second", rf"tps: {NUMBER}", "tps: 3,360 tflops: 20.1", 3360),
        ("tokens_per_second", rf"{NUMBER} tokens", "420 tokens/s/GPU", 3360),
        ("tokens_per_second", rf"gpu: {NUMBER}", "tokens_per_sec_per_gpu: 0.42K |", 3360),
        ("tokens_per_second_per_gpu", rf"gpu: {NUMBER}", "tokens_per_sec_per_gpu: 0.42K |", 420),
        ("tokens_per_second", rf"{NUMBER} K tok", "1.5 K tokens/s", 1500),
        ("tflops_per_gpu", rf"GPU\): {NUMBER}", "throughput per GPU (TFLOP/s/GPU): 151.3 |", 151.3),
        ("tflops_per_gpu", rf"{NUMBER} PF", "0.5 PFLOP/s", 500),
        ("peak_memory_bytes", rf"memory: {NUMBER}", "memory: 12.50GiB(15.0%)", 12.5 * 2**30),
        ("peak_memory_bytes", rf"mem {NUMBER}", "mem 12.5 GB", 12.5e9),
        ("peak_memory_bytes", r"mem ([\d.]+[KMG]?)", "mem 12.5GiB", 12.5 * 2**30),
        ("peak_memory_gib", rf"mem {NUMBER}", "mem 512 MiB", 0.5),
        ("loss", rf"loss: {NUMBER}", "loss: 2.5 | grad norm: 1.1", 2.5),
        ("consumed", rf"consumed: {NUMBER}", "consumed: 1.2M | x", 1.2e6),
        ("samples_per_second", rf"second: {NUMBER}", "train_samples_per_second: 3.5, 'x': 1", 3.5),
        ("step_time_s.median", rf"time: {NUMBER} ms", "time: 250 ms", 0.25),
        ("steps_per_second", NUMBER, "2.5s/it, loss 3", 0.4),
        ("micro_batches_per_second", NUMBER, "2.5it/s, loss 3", 2.5),
        # Per GPU, in the words after or anywhere in the number's label.
        ("tokens_per_second", NUMBER, "420 tokens per second per gpu", 3360),
        ("tokens_per_second", NUMBER, "420 tokens/s (per GPU)", 3360),
        ("tokens_per_second", NUMBER, "throughput per device (tok/s): 420", 3360),
        ("tokens_per_second", NUMBER, "per-GPU tokens/s 420", 3360),
        ("tokens_per_second", NUMBER, "throughput/device/tokens_per_sec: 420", 3360),
        ("tokens_per_second", NUMBER, "tokens per s per GPU: 420", 3360),
        ("tokens_per_second", rf"s: {NUMBER}", "12 GiB per GPU, tokens/s: 420", 420),
        ("tokens_per_second", rf"s: {NUMBER}", "batch (4 sequences/GPU) tokens/s: 420", 420),
        # Prefixes, and other spans than seconds.
        ("tokens_per_second", NUMBER, "3.36 ktok/s", 3360),
        ("tokens_per_second", r"([\d.]+k?)", "3.36ktok/s", 3360),
        ("tokens_per_second", NUMBER, "0.0034 Mtok/s", 3400),
        ("tokens_per_second", NUMBER, "25200 tokens/min", 420),
        ("tokens_per_second", NUMBER, "12.1M tokens/hour", 12.1e6 / 3600),
        ("samples_per_second", NUMBER, "600 samples/min", 10),
        ("tokens_per_second", NUMBER, "train/tokens_per_sec: 420", 420),
        ("tokens_per_second", NUMBER, "throughput/sec: 420", 420),
        # Times of one thing.
        ("samples_per_second", NUMBER, "1.25 s/sample", 0.8),
        ("samples_per_second", NUMBER, "1.25 s/sample/GPU", 6.4),
        ("samples_per_second", NUMBER, "ms/sample: 1250", 0.8),
        ("tokens_per_second", NUMBER, "2 ms per token", 500),
        ("steps_per_second", NUMBER, "2.5 s/batch loss", 0.4),
        ("step_time_s", NUMBER, "dt/ms 812", 0.812),
        ("step_time_s", NUMBER, "ms_per_step: 812", 0.812),
        # A letter alone is a unit of memory; in the metric's base.
        ("peak_memory_bytes", NUMBER, "mem=45.3G", 45.3e9),
        ("peak_memory_bytes", r"([\d.]+[GM])", "mem=45.3G", 45.3e9),
        ("peak_memory_bytes", NUMBER, "45300M", 45.3e9),
        ("peak_memory_bytes", NUMBER, "45300B", 45300),
        ("peak_memory_gib", NUMBER, "45.5G", 45.5),
        ("peak_memory_gib", r"([\d.]+[GM])", "45.5G", 45.5),
        ("peak_memory_gib", NUMBER, "512M", 0.5),
    ],
)
def test_the_unit_beside_the_number_counts(
    metric: str, pattern: str, line: str, value: float
) -> None:
    assert read(metric, pattern, line) == pytest.approx(value)


def test_a_stated_unit_counts_where_the_log_says_none() -> None:
    assert read("step_time_s", rf"time: {NUMBER}", "time: 812.5", unit="ms") == 0.8125
    assert read("peak_memory_bytes", rf"{NUMBER} MB", "512 MB", unit="MB") == 512e6


def test_a_stated_unit_per_gpu_is_one_of_the_job_times_its_gpus() -> None:
    assert read("tokens_per_second", NUMBER, "speed 420", unit="tokens/s/GPU") == 3360


def test_two_units_that_disagree_are_told() -> None:
    with pytest.raises(QuantityError, match=r"the log says 'ms' beside '812.5', .* unit is 's'"):
        read("step_time_s", rf"time: {NUMBER}", "time: 812.5 ms", unit="s")


@pytest.mark.parametrize(
    ("metric", "pattern", "line", "told"),
    [
        ("tokens_per_second", rf"{NUMBER} samples", "12.5 samples/s", "the log says 'samples/s'"),
        ("step_time_s", rf"{NUMBER}it", "[00:12<00:05,  1.25it/s]", "the log says 'it/s'"),
        ("steps_per_second", NUMBER, "1.2 s/sample", "the log says 's/sample'"),
        ("tokens_per_second", NUMBER, "420 tokens/s/node", "is of one node"),
        ("tokens_per_second_per_gpu", NUMBER, "per-node tokens/s: 420", "is of one node"),
        ("step_time_s", NUMBER, "train/tokens_per_sec: 420", "the log says 'tokens_per_sec'"),
        ("loss", r"loss: (\S+)", "loss: 1.2.3", "matched '1.2.3', which is not a number"),
        ("loss", r"loss: (\S+)", "loss: 1,5", "matched '1,5', which is not a number"),
    ],
)  # fmt: skip
def test_what_is_no_number_of_the_metric_is_told(
    metric: str, pattern: str, line: str, told: str
) -> None:
    with pytest.raises(QuantityError, match=re.escape(told)):
        read(metric, pattern, line)


def test_what_is_not_finite_passes() -> None:
    assert math.isnan(read("loss", r"loss: (\S+)", "loss: nan"))
    assert math.isinf(read("loss", r"loss: (\S+)", "loss: -Infinity"))


def test_units_of_patterns_are_checked_beforehand() -> None:
    check_unit("ms", "step_time_s")
    check_unit("K tokens/s", "tokens_per_second")
    with pytest.raises(
        QuantityError, match=r"'furlongs' of 'step_time_s': accepted a unit of time"
    ):
        check_unit("furlongs", "step_time_s")
    with pytest.raises(QuantityError, match=r"of tokens/s: tps, .* tok/s, .*, and \d+ more$"):
        check_unit("foo", "tokens_per_second")
    with pytest.raises(QuantityError, match="use 'scale'"):
        check_unit("ms", "score")
