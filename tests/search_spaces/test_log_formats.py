"""Lines as well-known trainers print them, with figures of our own, and what is read from them."""

# ruff: noqa: E501 - log lines are as long as they are
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces import SearchSpace, SpaceError
from search_spaces.known import LOG_FORMATS
from support.log_metrics import metrics_of

GIB = 2**30
MEGATRON = (
    " [2025-03-01 10:00:{i:02d}] iteration {i:8d}/      20 | consumed samples: {i:12d} |{more}"
    " elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    " learning rate: 1.500000E-04 | global batch size:    32 | lm loss: 9.1{i:02d}000E+00 |"
    " loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
)
# Milliseconds of the steps; the first two are the warm-up, the sixth comes after a checkpoint.
MS = (9000.0, 4000.0, 800.0, 820.0, 810.0, 5000.0, 830.0)
MEDIAN_S = 0.815


def log(line: str, pause: str = "  successfully saved checkpoint from iteration 5 to /c") -> str:
    """A log of these steps, with a pause before the sixth."""
    lines = []
    for i, ms in enumerate(MS, start=1):
        if i == 6:
            lines.append(pause)
        values = {"i": i, "ms": ms, "s": ms / 1e3, "tflops": 1e5 / ms, "more": ""}
        lines.append(line.format(**values, ksps=1e3 / ms, tps=1e6 / ms, sps=3.2e4 / ms))
    return "\n".join(lines) + "\n"


PUBLISHED = yaml.safe_load((Path(__file__).parent / "published_logs.yaml").read_text())
TPS = 1e6 / 815  # the median of so many a millisecond, nearly
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "megatron-lm",
        "core",
        log(MEGATRON) + "[Rank 0] (after 2 iterations) memory (MB) | allocated: 900.5 | "
        "max allocated: 2048.0 | reserved: 2100.0 | max reserved: 2200.0\n",
        {"step_time_s": MEDIAN_S, "tflops_per_gpu": 1e5 / 815, "loss": 9.107, "peak_memory_bytes": 2 * GIB},
    ),
    (
        "megatron-lm",
        "of 2020, without a colon after the loss",
        log(" iteration {i:8d}/      20 | elapsed time per iteration (ms): {ms:.1f} | "
            "learning rate 1.0E-04 | lm loss 9.1{i:02d}000E+00 | loss scale 1.0 |"),
        {"step_time_s": MEDIAN_S, "loss": 9.107},
    ),
    (
        "megatron-lm",
        "a fork that prints tokens, colours and ranks",
        log("\x1b[32m[default7]:\x1b[0m iteration {i:8d}/ 20 | elapsed time per iteration (ms): {ms:.1f} |"
            " throughput (token/sec/GPU): {tps:.1f} | flop throughput (TFLOP/sec/GPU): {tflops:.1f} |"),
        {"step_time_s": MEDIAN_S, "tokens_per_second_per_gpu": TPS, "tflops_per_gpu": 1e5 / 815},
    ),
    (
        "megatron-deepspeed",
        "of Microsoft",
        log(" iteration {i:8d}/ 20 | consumed samples: 8 | consumed tokens: 16384 | elapsed time per"
            " iteration (ms): {ms:.1f} | learning rate: 1.0E-05 | lm loss: 9.1{i:02d}000E+00 |"
            " samples per second: {sps:.3f} | tokens per gpu per second (tgs): {tps:.3f} |"
            " TFLOPs: {tflops:.2f} |")
        + "[INFO] [timer.py:260:stop] epoch=0/micro_step=7/global_step=7, RunningAvgSamplesPerSec=1.0,"
        " CurrSamplesPerSec=1.0, MemAllocated=1.01GB, MaxMemAllocated=2.5GB\n",
        {"step_time_s": MEDIAN_S, "samples_per_second": 3.2e4 / 815, "tokens_per_second_per_gpu": TPS,
         "tflops_per_gpu": 1e5 / 815, "peak_memory_bytes": 2.5 * GIB},
    ),
    (
        "neox",
        "2",
        log(" samples/sec: {sps:.3f} | iteration {i:8d}/      20 | elapsed time per iteration (ms):"
            " {ms:.1f} | learning rate: 1.2E-04 | approx flops per GPU: {tflops:.1f}TFLOPS |"
            " lm_loss: 9.1{i:02d}000E+00 | number of skipped iterations:   0 |"),
        {"step_time_s": MEDIAN_S, "samples_per_second": 3.2e4 / 815, "tflops_per_gpu": 1e5 / 815},
    ),
    (
        "deepspeed",
        "timer",
        log("[2025-03-01 10:00:00] [INFO] [timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, "
            "RunningAvgSamplesPerSec=2.0, CurrSamplesPerSec={sps}, MemAllocated=1.5GB, "
            "MaxMemAllocated=2.25GB"),
        {"samples_per_second": 3.2e4 / 815, "peak_memory_bytes": 2.25 * GIB},
    ),
    (
        "torchtitan",
        "with colours, from every rank",
        "".join(
            f"[rank{r}]:[titan] 2025-03-01 10:00:00,000 - root - INFO - {line}\n"
            for line in log("\x1b[31mstep: {i:2}  \x1b[32mloss:  9.1{i:02d}0  \x1b[38;5;208mgrad_norm:  1.20  "
                            "\x1b[36mmemory: 12.50GiB(15.80%)  \x1b[34mtps: {tps:,.0f}  \x1b[36mtflops: {tflops:,.2f}"
                            "  \x1b[35mmfu: 12.00%\x1b[0m", "Saving the checkpoint (or staging if async)").splitlines()
            for r in range(2)
        ),
        {"tokens_per_second_per_gpu": TPS, "tflops_per_gpu": 1e5 / 815, "peak_memory_bytes": 12.5 * GIB},
    ),
    (
        "nanotron",
        "with K and M",
        log("03/01/2025 10:00:00 [INFO|DP=0|PP=1|TP=0|ip-1]: iteration: {i} / 20 | consumed_tokens: 1.05M |"
            " elapsed_time_per_iteration_ms: {s:.3f}K | tokens_per_sec: {ksps:.4f}K |"
            " tokens_per_sec_per_gpu: 420 | global_batch_size: 256 | lm_loss: 9.1{i:02d} | lr: 0.0003 |"
            " model_tflops_per_gpu: {tflops:.1f} | hardware_tflops_per_gpu: 500 | grad_norm: 1.2 |"
            " cuda_memory_allocated: 1.2G | cuda_max_memory_reserved: 3.5G"),
        {"step_time_s": MEDIAN_S, "tokens_per_second": 1e6 / 815, "tflops_per_gpu": 1e5 / 815,
         "peak_memory_bytes": 3.5e9},
    ),
    (
        "picotron",
        "with K",
        log("[rank 0] Step: {i:<5d} | Loss: 9.1{i:02d}0 | Global batch size: 32.77K | Tokens/s: {ksps:.4f}K |"
            " Tokens/s/GPU: 12.3 | Tokens: 1.31M | MFU: 12.00% | Memory usage: 12.34GB"),
        {"tokens_per_second": 1e6 / 815, "peak_memory_bytes": 12.34e9},
    ),
    (
        "maxtext",
        "of 2025",
        log("I0301 10:00:00 1 metric_logger.py:196] completed step: {i}, seconds: {s:.3f}, TFLOP/s/device:"
            " {tflops:.3f}, Tokens/s/device: {tps:.3f}, total_weights: 65536, loss: 9.1{i:02d}"),
        {"step_time_s": MEDIAN_S, "tokens_per_second_per_gpu": TPS, "tflops_per_gpu": 1e5 / 815},
    ),
    (
        "nemo",
        "2",
        log("Training epoch 0, iteration {i}/19 | lr: 1e-05 | global_batch_size: 32 | global_step: {i} | "
            "reduced_train_loss: 9.1{i:02d} | train_step_timing in s: {s:.4f} | consumed_samples: 64"),
        {"step_time_s": MEDIAN_S, "loss": 9.107},
    ),
    (
        "megatron-bridge",
        "its own line",
        log("Step Time : {s:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU"),
        {"step_time_s": MEDIAN_S, "tflops_per_gpu": 1e5 / 815},
    ),
    (
        "megatron-bridge",
        "of 2025, beside Megatron's own",
        log("Step Time : {s:.2f}s GPU utilization: {tflops:.1f}TFLOP/s/GPU\n" + MEGATRON.replace(
            " throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |", "")),
        {"step_time_s": MEDIAN_S, "tflops_per_gpu": 1e5 / 815, "loss": 9.107},
    ),
    (
        "transformers",
        "Trainer",
        "{'loss': 9.2, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.5}\n"
        "{'train_runtime': 12.3, 'train_samples_per_second': 5.25, 'train_steps_per_second': 0.656, "
        "'train_loss': 9.15, 'epoch': 1.0}\n",
        {"samples_per_second": 5.25, "steps_per_second": 0.656, "loss": 9.15},
    ),
    (
        "transformers",
        "5, with the time at every step",
        "".join(
            f"{{'loss': '9.{i}', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '0.{i}', "
            f"'num_input_tokens_seen': {1024 * i}, 'train_runtime': '{sum(MS[:i]) / 1e3:.4g}', "
            f"'train_tokens_per_second': '1234'}}\n" for i in range(1, 6)
        ) + "{'train_runtime': '16.2', 'train_samples_per_second': '5.2', 'train_loss': '9.5'}\n",
        {"step_time_s": 0.81, "loss": 9.5},
    ),
    (
        "transformers",
        "5, with a line for every 10 steps",
        "".join(
            f"{{'loss': '9.{i}', 'epoch': '{2 * i / 10}', 'num_input_tokens_seen': {10240 * i}, "
            f"'train_runtime': '{5 + 8.1 * i:.4g}'}}\n" for i in range(1, 6)
        ) + "{'train_runtime': '45.5', 'train_samples_per_second': '8.791', "
        "'train_steps_per_second': '1.099', 'train_loss': '9.5', 'epoch': '1'}\n",
        {"step_time_s": 0.81, "loss": 9.5},
    ),
    (
        "deepspeed",
        "of 2022",
        "".join(
            f"[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{i}, SamplesPerSec={80 + i}.5, "
            "MemAllocated=0.25GB, MaxMemAllocated=9.0GB\n" for i in range(10, 60, 10)
        ),
        {"samples_per_second": 130.5, "peak_memory_bytes": 9 * GIB},
    ),
    (
        "torchtitan",
        "with a validation, which is no step",
        log("[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - step: {i:2}  loss:  9.1{i:02d}00  "
            "grad_norm:  1.2000  memory: 12.50GiB(15.80%)  tps: {tps:,.0f}  tflops: {tflops:,.2f}  mfu: N/A",
            "[titan] root - INFO - validate step:  5  loss:  7.0000  memory: 13.50GiB(16%)  tps: 9,999"),
        {"tokens_per_second_per_gpu": TPS, "loss": 9.107, "peak_memory_bytes": 12.5 * GIB},
    ),
    (
        "maxtext",
        "of 2023",
        log("completed step: {i}, seconds: {s:.3f}, TFLOP/s: {tflops:.3f}, loss: 9.1{i:02d}"),
        {"step_time_s": MEDIAN_S, "tflops_per_gpu": 1e5 / 815},
    ),
    (
        "lightning",
        "progress bar",
        "\rEpoch 0:  10%|#  | 1/10 [00:09<01:21,  0.11it/s, v_num=0]"
        "\rEpoch 0: 100%|###| 10/10 [00:12<00:00,  1.25it/s, v_num=0]\n",
        {"micro_batches_per_second": 1.25},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "metrics"),
    [(c[0], c[2], c[3]) for c in CASES],
    ids=[f"{c[0]}: {c[1]}" for c in CASES],
)
def test_the_median_of_the_steps_that_count_is_read_with_its_unit(
    name: str, text: str, metrics: dict[str, Any]
) -> None:
    found = metrics_of(LOG_FORMATS[name], [text, ""], warmup_steps=2, num_gpus=8)
    for key, value in metrics.items():
        assert found[key] == pytest.approx(value, rel=2e-3), (key, dict(found))


def test_the_mean_of_a_run_is_left_out_beside_its_steps() -> None:
    [text] = [c[2] for c in CASES if c[1].startswith("5, with the time")]
    assert "samples_per_second" not in metrics_of(LOG_FORMATS["transformers"], [text, ""])
    last = text.splitlines()[-1]
    alone = metrics_of(LOG_FORMATS["transformers"], [last, ""])
    assert alone == {"samples_per_second": 5.2, "loss": 9.5}


@pytest.mark.parametrize(
    ("logged", "steps", "warmup", "step_s"),
    [
        ((10, 20), 25, 0, (5.81 + 0.81) / 2),  # the last five have no line
        ((8, 16, 24), 32, 8, 0.81),
        ((1, 10, 20, 30), 36, 1, 0.81),  # logging_first_step
        ((10, 20, 30), 30, 5, 0.81),  # a line that is partly of the warm-up does not count
        ((10, 20, 30), 30, 0, 0.81),
        ((1, 2, 3), 3, 1, 0.81),
    ],
)
def test_the_steps_of_a_line_follow_from_how_far_the_run_was(
    logged: tuple[int, ...], steps: int, warmup: int, step_s: float
) -> None:
    """The start takes 50 s, which are in the first step."""
    rate = steps / (50 + 0.81 * steps)
    text = "".join(
        f"{{'loss': '9', 'epoch': '{step / steps:.4g}', 'num_input_tokens_seen': {512 * step}, "
        f"'train_runtime': '{50 + 0.81 * step:.4g}'}}\n" for step in logged
    ) + (
        f"{{'train_runtime': '{50 + 0.81 * steps:.4g}', 'train_steps_per_second': '{rate:.3f}', "
        "'epoch': '1'}\n"
    )  # fmt: skip
    found = metrics_of(LOG_FORMATS["transformers"], [text], warmup)
    assert found["step_time_s"] == pytest.approx(step_s, rel=5e-3)
    mean = metrics_of(LOG_FORMATS["transformers"], [text.replace("epoch", "x")], warmup)
    if len(logged) < steps:  # nothing says which steps a line is of
        assert mean["step_time_s"] == pytest.approx(1 / rate, rel=5e-3)


@pytest.mark.parametrize("case", PUBLISHED, ids=[case["from"] for case in PUBLISHED])
def test_a_published_log_says_what_people_read_in_it(case: dict[str, Any]) -> None:
    """No less than these metrics, nor any that is not there."""
    found = metrics_of(LOG_FORMATS[case["format"]], [case["log"], ""], num_gpus=8)
    read = {key: found.get(key) for key in case["metrics"]}
    assert read == pytest.approx(case["metrics"], rel=1e-5)
    extra = set(found) - set(case["metrics"]) - {"loss", "peak_memory_bytes", "tflops_per_gpu"}
    assert not extra


def test_a_line_of_digits_is_read_in_linear_time() -> None:
    began_s = time.process_time()
    text = "train " + "1" * 40_000 + "\ntrain 1.5ba/s\n"
    assert metrics_of(LOG_FORMATS["composer"], [text, ""]) == {"steps_per_second": 1.5}
    assert time.process_time() - began_s < 3  # over ten where it is quadratic


def test_every_format_has_a_case() -> None:
    cases = [case[0] for case in CASES] + [case["format"] for case in PUBLISHED]
    assert set(cases) <= LOG_FORMATS.keys()
    read = [LOG_FORMATS[name] for name in cases]
    assert [name for name, log in LOG_FORMATS.items() if log not in read] == []


def test_a_space_names_a_format_and_adds_patterns(
    load: Callable[[str], SearchSpace], own_trainer: str
) -> None:
    given = own_trainer.replace(
        "trainer:\n",
        "trainer:\n  result: {format: torchtitan, patterns: {loss: 'l=(.)', x: 'x=(.)'}}\n",
    )
    log = load(given).program.log
    assert {"tokens_per_second_per_gpu", "x"} <= set(log.patterns)
    assert [p.regex for p in log.patterns["loss"]] == ["l=(.)"]
    with pytest.raises(SpaceError, match=r"found torchtitn.*torchtitan"):
        load(given.replace("torchtitan", "torchtitn"))
    with pytest.raises(SpaceError, match="needs format or patterns"):
        load(own_trainer.replace("trainer:\n", "trainer:\n  result: {pauses: x}\n"))
