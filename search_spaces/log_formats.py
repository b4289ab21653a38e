"""What the logs of well-known trainers look like: ``trainer: {result: {format: megatron-lm}}``.

Each record reads several versions of its trainer, and of forks. A key's patterns are tried in
order; the first one that is found in a log is the metric's. Units stand beside the numbers, but for
those that print 2^30 bytes as ``GB`` or 2^20 as ``MB``.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm import PAUSES, LogFormat, Pattern

_NUMBER = r"(?P<value>[\d.,]+(?:[eE][-+]?\d+)?(?:[KMGB](?![A-Za-z]))?)"
_LAST_LOSS = r"(?P<value>\d+\.?\d*(?:[eE][-+]?\d+)?)"


def _after(label: str, step: str = "", **how: object) -> Pattern:
    """The number after a label; ``step``, where there is one, finds the step on the same line."""
    before = rf"{step}.*?" if step else ""
    return Pattern(rf"{before}{label}\s*{_NUMBER}", **how)  # type: ignore[arg-type]


def _loss(label: str) -> Pattern:
    return Pattern(rf"{label}\s*{_LAST_LOSS}", reduce="last")


def _of_the_run(label: str) -> Pattern:
    """A mean of all steps, the first ones too."""
    return _after(label, unit="", reduce="last", unless="step_time_s")


def _binary(label: str, power: int) -> Pattern:
    """The most of a number of 2^10, 2^20 or 2^30 bytes, whatever the log calls them."""
    return Pattern(rf"{label}\s*(?P<value>[\d.]+)", unit="", scale=1024.0**power, reduce="max")


_ITERATION = r"\biteration\s+(?P<step>\d+)\s*/"
_MEGATRON: Mapping[str, list[Pattern]] = {
    # megatron/training/training.py: training_log, from 2019 to core 0.15, and its forks.
    "step_time_s": [_after(r"elapsed time per iteration \((?:ms|s)\):", _ITERATION)],
    "tflops_per_gpu": [
        _after(r"throughput per GPU \(TFLOP/s/GPU\):", _ITERATION),
        _after(r"flop throughput \(TFLOP/sec/GPU\):", _ITERATION),
        _after(r"\bTFLOPs:", _ITERATION),
    ],
    "tokens_per_second_per_gpu": [
        _after(r"tokens per gpu per second \(tgs\):", _ITERATION, unit=""),
        _after(r"throughput \(token/sec/GPU\):", _ITERATION, unit=""),
    ],
    "samples_per_second": [
        _after(r"samples per second:", _ITERATION, unit=""),
        _after(r"samples/sec:", unit=""),
    ],
    "loss": [_loss(r"\blm[ _]loss:?"), _loss(r"\| loss:")],
    "peak_memory_bytes": [_binary(r"\bmax allocated:", 2)],
}
_DEEPSPEED: Mapping[str, list[Pattern]] = {
    # deepspeed/utils/timer.py: ThroughputTimer.stop; "GB" are 2^30 bytes.
    "samples_per_second": [
        Pattern(r"(?:global_step=|\] \d+/)(?P<step>\d+), .*?CurrSamplesPerSec=(?P<value>[\d.]+)"),
        # Before 0.5.10: the mean so far.
        Pattern(r"\] \d+/(?P<step>\d+), SamplesPerSec=(?P<value>[\d.]+)", reduce="last"),
    ],
    "peak_memory_bytes": [_binary(r"MaxMemAllocated=", 3)],
}
_TITAN_STEP = r"(?<!validate )\bstep:\s*(?P<step>\d+)\s"
_NANOTRON_STEP = r"\biteration:\s*(?P<step>\d+)\s*/"
_PICOTRON_STEP = r"\bStep:\s*(?P<step>\d+)\s"
_MAXTEXT_STEP = r"\bcompleted step:\s*(?P<step>\d+),"
_NEMO_STEP = r"\bglobal_step:\s*(?P<step>\d+)\s"

LOG_FORMATS: Mapping[str, LogFormat] = {
    "megatron-lm": LogFormat(_MEGATRON),
    "megatron-deepspeed": LogFormat(
        {
            **_MEGATRON,
            "peak_memory_bytes": [
                *_DEEPSPEED["peak_memory_bytes"],
                *_MEGATRON["peak_memory_bytes"],
            ],
        }
    ),
    # megatron/training.py of gpt-neox 1 to 2: training_log.
    "neox": LogFormat(
        {
            "step_time_s": _MEGATRON["step_time_s"],
            "samples_per_second": [_after(r"samples/sec:", unit="")],
            "tflops_per_gpu": [_after(r"approx flops per GPU:", _ITERATION)],
            "loss": [_loss(r"\blm_loss:")],
            "peak_memory_bytes": [
                *_DEEPSPEED["peak_memory_bytes"],
                *_MEGATRON["peak_memory_bytes"],
            ],
        }
    ),
    "deepspeed": LogFormat(_DEEPSPEED),
    # torchtitan/components/metrics.py: MetricsProcessor.log; tokens per second and device.
    "torchtitan": LogFormat(
        {
            "tokens_per_second_per_gpu": [_after(r"\b[tw]ps:", _TITAN_STEP, unit="")],
            "tflops_per_gpu": [_after(r"\btflops:", _TITAN_STEP, unit="")],
            "loss": [_loss(rf"{_TITAN_STEP}\s*loss:")],
            "peak_memory_bytes": [_after(r"\bmemory:", _TITAN_STEP, reduce="max")],
        },
        pauses=rf"{PAUSES}|\bvalidate step:",
    ),
    # nanotron/trainer.py: train_step_logs; numbers with K, M, G and B.
    "nanotron": LogFormat(
        {
            "step_time_s": [
                _after(r"(?:elapsed_)?time_per_iteration_ms:", _NANOTRON_STEP, unit="ms")
            ],
            "tokens_per_second": [_after(r"tokens_per_sec:", _NANOTRON_STEP, unit="")],
            "tflops_per_gpu": [_after(r"model_tflops_per_gpu:", _NANOTRON_STEP, unit="")],
            "loss": [_loss(r"\blm_loss:")],
            "peak_memory_bytes": [
                Pattern(r"Peak reserved:\s*(?P<value>[\d.]+)", unit="MiB", reduce="max"),
                Pattern(
                    r"cuda_max_memory_reserved:\s*(?P<value>[\d.]+[KMGB]?)", unit="", reduce="max"
                ),
            ],
        }
    ),
    # train.py of picotron, and nanotron's small relatives.
    "picotron": LogFormat(
        {
            "tokens_per_second": [_after(r"Tokens/s:", _PICOTRON_STEP, unit="")],
            "loss": [_loss(r"\bLoss:")],
            "peak_memory_bytes": [_after(r"Memory usage:", _PICOTRON_STEP, reduce="max")],
        }
    ),
    # MaxText's metric logger.
    "maxtext": LogFormat(
        {
            "step_time_s": [_after(r"seconds:", _MAXTEXT_STEP, unit="s")],
            "tflops_per_gpu": [
                _after(r"TFLOP/s/device:", _MAXTEXT_STEP, unit=""),
                _after(r"TFLOP/s:", _MAXTEXT_STEP, unit=""),  # of 2023, also per device
            ],
            "tokens_per_second_per_gpu": [_after(r"Tokens/s/device:", _MAXTEXT_STEP, unit="")],
            "loss": [_loss(r"\bloss:")],
        }
    ),
    # NeMo 2's progress printer, and Megatron-Bridge's lines beside Megatron's own.
    "nemo": LogFormat(
        {
            "step_time_s": [
                _after(r"train_step_timing in s:", _NEMO_STEP, unit="s"),
                Pattern(r"\bStep Time\s*:\s*(?P<value>[\d.]+)\s*s\b"),
                *_MEGATRON["step_time_s"],
            ],
            "tflops_per_gpu": [
                Pattern(r"utilization:\s*(?P<value>[\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU", unit=""),
                *_MEGATRON["tflops_per_gpu"],
            ],
            "loss": [_loss(r"reduced_train_loss:"), *_MEGATRON["loss"]],
        }
    ),
    # transformers.Trainer: the time since its start at every step, if it counts tokens (from v5 on;
    # numbers are in quotes there); else its last line, of the whole run with its start.
    "transformers": LogFormat(
        {
            "step_time_s": [
                Pattern(
                    r"'num_input_tokens_seen': '?[\d.e+]+'?, 'train_runtime': '?(?P<value>[\d.]+)",
                    unit="s",
                    since_start=True,
                )
            ],
            "samples_per_second": [_of_the_run(r"train_samples_per_second'?: '?")],
            "steps_per_second": [_of_the_run(r"train_steps_per_second'?: '?")],
            "loss": [_loss(r"'train_loss'?: '?"), _loss(r"'loss'?: '?")],
        }
    ),
    # Lightning's progress bars, rich's and tqdm's: they count batches, not steps.
    "lightning": LogFormat(
        {
            "micro_batches_per_second": [
                Pattern(r"(?P<value>[\d.]+)\s?it/s\b", unit="", reduce="last")
            ],
            "micro_batch_time_s": [Pattern(r"(?P<value>[\d.]+)\s?s/it\b", unit="", reduce="last")],
            "loss": [_loss(r"\btrain_loss(?:_step)?[=:]")],
        }
    ),
    # The progress bar of tqdm, as many scripts have it; its rate is smoothed.
    "tqdm": LogFormat(
        {
            "steps_per_second": [Pattern(r"(?P<value>[\d.]+)\s?it/s\b", unit="", reduce="last")],
            "step_time_s": [Pattern(r"(?P<value>[\d.]+)\s?s/it\b", unit="", reduce="last")],
        }
    ),
}
LOG_FORMATS = {
    **LOG_FORMATS,
    "megatron-bridge": LOG_FORMATS["nemo"],
}
