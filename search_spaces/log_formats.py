"""What the logs of well-known trainers look like: ``trainer: {result: {format: megatron-lm}}``.

Each record reads several versions of its trainer, and of forks. A key's patterns are tried in
order; the first one that is found in a log is the metric's. Units stand beside the numbers, but for
those that print 2^30 bytes as ``GB`` or 2^20 as ``MB``.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm.logs.patterns import PAUSES, LogFormat, Pattern

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


_ITERATION = r"\biteration[\s=]+(?P<step>\d+)\s*/"
# "tokens/s/GPU", "tokens per gpu per second (tgs)", "Tokens per second per GPU (Tok/s/GPU)" and the
# like, in which forks differ most.
_PER = r"(?:/|[\s_-]per[\s_-])"
_GPU, _SECOND = r"(?:gpu|npu|device|p)", r"(?:second|sec|s)"
_TOKENS_PER_GPU = (
    rf"(?i:\btok(?:en)?s?{_PER}(?:{_SECOND}{_PER}{_GPU}|{_GPU}{_PER}{_SECOND})(?![a-z]))"
    r"[^|:=\d]{0,25}[:=]"
)
_MEGATRON: Mapping[str, list[Pattern]] = {
    # megatron/training/training.py: training_log, from 2019 to core 0.19, and its forks: those of
    # Microsoft, BigScience, Argonne ("key=value"), FlagScale, the Swiss AI Initiative, and AMD's
    # Primus, which prints "this step's/the mean so far".
    "step_time_s": [
        _after(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?(?:ms|s)\)?[:=]", _ITERATION)
    ],
    "tflops_per_gpu": [
        _after(r"\((?:TFLOP/s|TFLOP/sec|tflops/sec)/GPU\)\s?:", _ITERATION),
        _after(r"\bTFLOPs[:=]", _ITERATION),
    ],
    "tokens_per_second_per_gpu": [_after(_TOKENS_PER_GPU, _ITERATION, unit="")],
    "samples_per_second": [
        _after(r"samples[ _]per[ _]second[:=]", _ITERATION, unit=""),
        _after(r"samples/sec:", unit=""),
    ],
    "loss": [_loss(r"\blm[ _]loss[:=]?"), _loss(r"\| loss:")],
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
_PICOTRON_STEP = r"\bStep:\s*(?P<step>\d+)[\s,]"
_MAXTEXT_STEP = r"\bcompleted step:\s*(?P<step>\d+),"
_NEMO_STEP = r"\bglobal_step:\s*(?P<step>\d+)\s"
# A progress bar's rate, "1.25it/s" or, from a second on, "2.31s/it".
_RATE = r"(?P<value>\d{1,6}\.?\d{0,4})\s?(?:it/s|s/it)\b"
_ASIDE = "Download|Evaluat|Fetch|Filter|Generat|Load|Map|Predict|Sanity|Sav|Test|Tokeniz|Valid"
_TQDM = rf"^(?:(?!\b(?:{_ASIDE})).){{0,500}}?{_RATE}"
_EPOCH = rf"\bEpoch \d+.*?{_RATE}"  # Lightning's bar of training; others are of validation

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
            "step_time_s": [_after(r"Time/step:", _PICOTRON_STEP)],
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
        },
        pauses=rf"{PAUSES}|\beval (?:metrics|step)",
    ),
    # NeMo 2's progress printer, NeMo 1's bar, and Megatron-Bridge's lines beside Megatron's.
    "nemo": LogFormat(
        {
            "step_time_s": [
                _after(r"train_step_timing in s:", _NEMO_STEP, unit="s"),
                _after(r"train_step_timing in s=", unit="s"),
                Pattern(r"\bStep Time\s*:\s*(?P<value>[\d.]+)\s*s\b"),
                *_MEGATRON["step_time_s"],
            ],
            "tflops_per_gpu": [
                Pattern(r"utilization:\s*(?P<value>[\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU", unit=""),
                _after(r"TFLOPS_per_GPU:", _NEMO_STEP, unit=""),
                *_MEGATRON["tflops_per_gpu"],
            ],
            "tokens_per_second_per_gpu": [_after(r"tokens_per_sec_per_gpu:", _NEMO_STEP, unit="")],
            # Before 1.21.
            "steps_per_second": [
                Pattern(rf"{_EPOCH}.*reduced_train_loss", reduce="last", unless="step_time_s")
            ],
            "loss": [_loss(r"reduced_train_loss[:=]"), *_MEGATRON["loss"]],
            "peak_memory_bytes": [
                _after(r"(?:max_memory_allocated|peak_memory_usage):", unit="", reduce="max"),
                *_MEGATRON["peak_memory_bytes"],
            ],
        }
    ),
    # transformers.Trainer: the time since its start at every step, if it counts tokens (from v5 on;
    # numbers are in quotes there); else its last line, of the whole run with its start; without
    # that, its progress bar. LLaMA-Factory adds the throughput so far, axolotl the memory.
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
            "steps_per_second": [
                _of_the_run(r"train_steps_per_second'?: '?"),
                Pattern(_TQDM, reduce="last", unless="step_time_s"),
            ],
            "tokens_per_second": [
                _after("'throughput': '?", unit="", reduce="last", unless="samples_per_second")
            ],
            "loss": [_loss(r"'train_loss'?: '?"), _loss(r"'loss'?: '?")],
            "peak_memory_bytes": [
                Pattern(
                    r"'memory/max_(?:mem_)?active ?\((?i:gib)\)': '?(?P<value>[\d.]+)",
                    unit="GiB",
                    reduce="max",
                )
            ],
        }
    ),
    # Lightning's progress bars, rich's and tqdm's: they count batches, not steps.
    "lightning": LogFormat(
        {
            "micro_batches_per_second": [Pattern(_EPOCH, reduce="last")],
            "loss": [_loss(r"(?<![/\w])(?:train[_/])?loss(?:_step)?[=:]")],
        }
    ),
    # The progress bar of tqdm, as many scripts have it; its rate is smoothed.
    "tqdm": LogFormat({"steps_per_second": [Pattern(_TQDM, reduce="last")]}),
    # Composer's ConsoleLogger, as LLM Foundry has it; means of the last batches.
    "composer": LogFormat(
        {
            "tokens_per_second_per_gpu": [
                _after("throughput/device/tokens_per_sec:", unit="", reduce="last")
            ],
            "samples_per_second": [_after("throughput/samples_per_sec:", unit="", reduce="last")],
            "loss": [_loss("loss/train/total:")],
            "peak_memory_bytes": [
                Pattern(r"memory/peak_reserved_mem:\s*(?P<value>[\d.]+)", unit="GB", reduce="max")
            ],
        }
    ),
    # OLMo's console: tokens per second are a mean of the last steps there; OLMo-core's: TPS.
    "olmo": LogFormat(
        {
            "tokens_per_second_per_gpu": [
                _after("throughput/device/TPS=", unit=""),
                _after("throughput/device/tokens_per_second=", unit="", reduce="last"),
            ],
            "loss": [_loss(r"train/(?:CE loss|CrossEntropyLoss)=")],
            "peak_memory_bytes": [
                Pattern(r"Peak GPU Memory \(MB\)=(?P<value>[\d.,]+)", unit="MB", reduce="max"),
                Pattern(
                    r"GPU (?:reserved|active) mem \(GiB\)=(?P<value>[\d.]+)",
                    unit="GiB",
                    reduce="max",
                ),
            ],
        }
    ),
}
LOG_FORMATS = {
    **LOG_FORMATS,
    "megatron-bridge": LOG_FORMATS["nemo"],
}
