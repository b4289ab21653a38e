"""The checks of a device: each returns its figures, or raises ``WrongError``, which says why."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from foundation.files import finite
from trainer.data.prepare import prepare_data
from trainer.model.attention import attend, document_starts, for_each_query, own_document
from trainer.model.initialize import initialize
from trainer.model.transformer import Stage
from trainer.plan.config import TrainConfig
from trainer.plan.flops import model_flops
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError
from trainer.quantization import blocks, reference
from trainer.runtime.device import Device, attention_backends
from trainer.train import Trainer
from trainer.verify.plan import SIZES, TINY
from trainer.zero.background import DeviceStream
from trainer.zero.fsdp import ShardedWeights
from trainer.zero.hooks import GatherWeights

Figures = dict[str, Any]

LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 0.02, "fp16": 0.01}
ATTENTION_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
STEPS = 3


class WrongError(Exception):
    """A check that failed."""


class Tokens:
    """Skewed random sequences, the same on every device."""

    def __init__(self, config: TrainConfig) -> None:
        self.words = config.model.vocab_size

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(first)
        drawn = torch.rand(count, seq_length + 1, generator=generator)
        tokens = drawn.pow(3).mul(self.words).long()
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> Tensor:
        places = torch.arange(seq_length + 1).expand(count, -1)
        return torch.where(places < seq_length // 3, 0, seq_length // 3)


def difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    expected = expected.cpu().double()
    return float((found.cpu().double() - expected).abs().max() / expected.abs().max())


def facts(device: Device) -> Figures:
    return {**device.facts(), "torch": str(torch.__version__)}


def attention(device: Device) -> Figures:
    """Attention and its gradients against float64, by number format, mask and grouped queries."""
    errors = {}
    bounds = torch.tensor([[0, 64, 192, 192]] * 2, dtype=torch.int32)
    seen = own_document(document_starts(bounds, 192), torch.float64)
    kinds = itertools.product(ATTENTION_TOLERANCE, ("", ", masked", ", documents"), (False, True))
    for dtype, kind, grouped in kinds:
        name = f"{str(dtype)[6:]}{kind}{', grouped' if grouped else ''}"
        if kind == ", documents" and not device.has_packed_attention(dtype, 64, compiled=False):
            continue
        generator = torch.Generator().manual_seed(1)
        shapes = [(192, 2, heads, 64) for heads in (4, *(2 * (2 if grouped else 4,)))]
        exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        mask = seen if kind else None
        own = not device.has_grouped_attention(dtype, 64, kind == ", masked")
        inputs = [x.to(device.torch, dtype).requires_grad_() for x in exact]
        with attention_backends(device.type):
            there = None if mask is None else mask.to(device.torch, dtype)
            if kind == ", documents":
                there = bounds.to(device.torch)
            query, key, value = inputs
            if own and grouped:
                key, value = for_each_query(query, key), for_each_query(query, value)
            found = attend(query, key, value, there)
            found.sum().backward()
        query, key, value = expected_of = [x.requires_grad_() for x in exact]
        expected = attend(query, key, value, mask)
        expected.sum().backward()
        pairs = [(found, expected)]
        pairs += [(x.grad, y.grad) for x, y in zip(inputs, expected_of, strict=True)]
        errors[name] = max(difference(x.detach(), y.detach()) for x, y in pairs)
        if not errors[name] <= ATTENTION_TOLERANCE[dtype]:
            raise WrongError(f"attention ({name}) differs from float64's by {errors[name]:.2g}")
    return {"differences": errors}


def quantization(device: Device) -> Figures:
    """Quantized bytes, decoded numbers and their sums, against plain torch on the CPU."""
    kernels = blocks.kernels_for(device.type)
    if kernels is reference:
        raise WrongError("quantization runs in plain torch: its kernels could not be built")
    generator = torch.Generator().manual_seed(2)
    for fmt, dtype in itertools.product((Format.INT8, Format.INT4), blocks.DTYPES):
        x = torch.randn(3, 5000, generator=generator).to(dtype)
        packed = torch.zeros(3, fmt.num_bytes(5000), dtype=torch.uint8)
        decoded, total = torch.zeros(3, 5000, dtype=dtype), torch.zeros(5000)
        reference.quantize(x, fmt, packed)
        reference.dequantize(packed, fmt, decoded)
        reference.dequantize_sum(packed, fmt, total, False)
        there = blocks.quantize(x.to(device.torch), fmt)
        numbers = blocks.dequantize(there, fmt, torch.empty_like(decoded, device=device.torch))
        sums = blocks.dequantize_sum(there, fmt, torch.empty_like(total, device=device.torch))
        pairs = ((there, packed), (numbers, decoded), (sums, total))
        if any(difference(found, expected) for found, expected in pairs):
            raise WrongError(f"{fmt} of {dtype} gives other bytes than on a CPU")
    return {"kernels": kernels.__name__}


@contextmanager
def _job(device: Device, ranks: int = 1) -> Iterator[None]:
    """A process group of this one rank, or of this rank and torch's fake peers."""
    options = device.group_options()
    store: Any = dist.HashStore()
    if ranks > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        options, store = {"backend": "fake"}, FakeStore()
    dist.init_process_group(**options, store=store, rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _train(training: Trainer, first: int = 0, steps: int = STEPS) -> list[float]:
    dataset = Tokens(training.config)
    with attention_backends(training.device.type):
        found = [training.step(first + number, dataset).loss for number in range(steps)]
    training.finish()
    return found


def losses(device: Device, **settings: Any) -> Figures:
    """Losses of a tiny model against those of a CPU in float32, from the same weights."""
    given: dict[str, Any] = {"model": TINY, "data": "", "mbs": 2, "gas": 2}
    data = {key: settings[key] for key in ("documents", "goldfish") if key in settings}
    with tempfile.TemporaryDirectory() as folder:
        host = Device("cpu")
        reference_of = given | data | {"device": "cpu", "precision": "fp32", "save": folder}
        with _job(host):
            training = Trainer(TrainConfig.parse(reference_of), host)
            _train(training)
            training.checkpoints.save(training, STEPS)
            expected = _train(training, STEPS)
        there = {**given, **settings, "device": device.type, "load": folder}
        with _job(device):
            training = Trainer(TrainConfig.parse(there), device)
            found = _train(training, training.resume())
    worst = max(abs(mine / theirs - 1) for mine, theirs in zip(found, expected, strict=True))
    if not worst <= LOSS_TOLERANCE[settings.get("precision", "bf16")]:
        raise WrongError(f"losses {found} are not those of a CPU in float32, {expected}")
    return {"losses": found, "expected": expected, "difference": worst}


def sharded(device: Device, **settings: Any) -> Figures:
    """Steps of one of 8 ranks with fake peers: checks kernels and memory, but no numbers."""
    given = {"model": {**TINY, "seq_length": 512}, "data": "", "mbs": 2, "gas": 2}
    config = TrainConfig.parse({**given, "device": device.type, "ranks_per_node": 4, **settings})
    with _job(device, 8):
        training = Trainer(config, device)
        _train(training)
    return {"traffic": training.traffic.report(STEPS)["bytes"], **device.memory()}


class _Delayed(DeviceStream):
    """Writes secondary copies late, on a stream of its own: reads that do not wait come first.

    Dai et al. 2024: a gather that is not ordered after the copy reads unwritten memory.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    def run(self, work: Callable[[], None]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(50_000_000)  # cycles: tens of milliseconds, longer than a layer
            work()

    def record_event(self) -> torch.Event:
        return self.stream.record_event()


def _sees_races(device: Device) -> bool:
    """Whether a read that does not wait for a late write comes before it."""
    writing, copy = _Delayed(), torch.zeros(1024, device=device.torch)

    def write() -> None:
        copy.fill_(1)

    copy.record_stream(writing.stream)
    writing.run(write)
    early = copy.clone()
    torch.cuda.current_stream().wait_event(writing.record_event())
    return difference(early, torch.ones(1024)) > 0


class _Compared:
    """Gathers a unit's weights and compares: fake peers have this rank's row, so all are equal."""

    def __init__(self, gather: GatherWeights, found: Tensor, writing: _Delayed | None) -> None:
        self.gather, self.found, self.writing = gather, found, writing
        self.allocate = gather.allocate
        assert gather.secondary is not None
        if writing is not None:
            gather.secondary.writing = writing

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        row = input_tensor.clone()  # a part of the output
        self.gather(output_tensor, input_tensor, group)
        if self.writing is not None:
            output_tensor.record_stream(self.writing.stream)
        assert self.gather.context.gathering is not None
        return self.gather.context.gathering.run(lambda: self._compare(output_tensor, row))

    def _compare(self, whole: Tensor, row: Tensor) -> None:
        rows, wanted = (x.view(torch.uint8).view(-1, row.nbytes) for x in (whole, row))
        self.found += (rows != wanted).sum()


def race(device: Device, steps: int, **settings: Any) -> Figures:
    """Steps whose every gather from a secondary copy is compared with the primary's bytes.

    On a GPU also with copies written late, on a stream of their own, after a test that a read that
    does not wait would show the race.
    """
    given = {"model": {**TINY, "num_layers": 4}, "data": "", "gas": 2, "ranks_per_node": 4}
    config = TrainConfig.parse({**given, "device": device.type, **settings})
    read = 0
    for delayed in (False, True) if device.type == "cuda" else (False,):
        with _job(device, 8):
            training = Trainer(config, device)
            assert isinstance(training.weights, ShardedWeights)
            found = torch.ones((), dtype=torch.float64, device=device.torch)
            if delayed and not _sees_races(device):
                raise WrongError("a read that does not wait finds a late write: races are hidden")
            writing = _Delayed() if delayed else None
            units = training.weights.units
            copies = [copy for unit in units if (copy := unit.gather.secondary) is not None]
            for unit in units:
                if unit.gather.secondary is not None:
                    unit.module.set_custom_all_gather(_Compared(unit.gather, found, writing))
            for number in range(steps):
                _train(training, number, 1)
                with torch.no_grad():  # sums over fake peers are no update
                    for master in itertools.chain(*training.weights.masters.values()):
                        master.normal_()
                training.weights.publish()
        if wrong := difference(found, torch.ones(())):
            raise WrongError(f"{wrong:.0f} bytes gathered from copies are not the primary's")
        read += sum(copy.gathers for copy in copies)
    if not read:
        raise WrongError("no weights were gathered from copies")
    return {"gathers": read}


def out_of_memory(device: Device) -> Figures:
    """A run that needs more memory than its limit: its result must have the status ``oom``."""
    config = {
        "model": {**TINY, "hidden_size": 2048, "ffn_hidden_size": 8192, "vocab_size": 32768},
        "data": "", "device": device.type, "device_memory_bytes": 300 << 20,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        tokens, text = Path(folder) / "tokens", Path(folder) / "text"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 2000)
        prepare_data([text], tokens)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**config, "data": str(tokens)}))
        argv = [sys.executable, "-m", "trainer", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        result = path.with_name("result.json")
        data = json.loads(result.read_text()) if result.exists() else {}
    if data.get("status") != "oom":
        said = data.get("message") or done.stderr[-500:]
        raise WrongError(f"running out of memory ends as {data.get('status', 'no result')}: {said}")
    return {"exit_code": done.returncode, "where": data.get("where"), "message": data["message"]}


def layers(device: Device, size: str, plain: bool = False, **settings: Any) -> Figures:
    """Step time and TFLOP/s of a few layers with the full vocabulary."""
    model = SIZES[size] if device.type == "cuda" else TINY
    given = {"model": model, "data": "", "device": device.type, "gas": 2, **settings}
    config = TrainConfig.parse(given)
    dataset = Tokens(config)
    times_s = []
    with _job(device), attention_backends(device.type):
        training = None if plain else Trainer(config, device)
        step = _plain_step(config, device, dataset) if training is None else training.step
        for number in range(3 + STEPS):
            begin_s = device.clock()
            step(number, dataset)
            times_s.append(device.clock() - begin_s)
        if training is not None:
            training.finish()
    seconds = statistics.median(times_s[3:])
    flops = model_flops(config.model, config.mbs * config.gas)
    return {"seconds": seconds, "tflops": flops / seconds / 1e12, **device.memory()}


def _plain_step(config: TrainConfig, device: Device, dataset: Tokens) -> Callable[..., object]:
    """A plain torch step: float32 weights, autocast, a compiled model, fused AdamW."""
    with torch.device(device.torch):
        stage = Stage(config.model)
    initialize(stage, "", config.model, config.seed)
    # A CPU only tries the program; its code would take the compiler a minute.
    model: Any = torch.compile(stage) if device.type == "cuda" else stage
    adamw = torch.optim.AdamW(stage.parameters(), lr=3e-4, fused=True)

    def step(number: int, _: object) -> None:
        for _micro_batch in range(config.gas):
            batch = dataset.samples(
                number, config.mbs, seq_length=config.model.seq_length, seed=config.seed
            )
            inputs, targets = (part.to(device.torch) for part in batch)
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(inputs)
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.t().reshape(-1))
            (loss / config.gas).backward()
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()

    return step


_CHECKS = (facts, attention, quantization, losses, sharded, race, out_of_memory, layers)
CHECKS: dict[str, Callable[..., Figures]] = {check.__name__: check for check in _CHECKS}


def run(kind: str, settings: dict[str, Any], device_name: str) -> Figures:
    """One check: its figures and ``ok``, or what is wrong."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        device = Device(device_name)
        if kind == "facts" and device.type != device_name:
            raise WrongError(f"found a {device.type}")
        figures = CHECKS[kind](device, **settings)
    except ConfigError as error:  # not supported on this device
        return {"status": "refused", "message": str(error)}
    except Exception as error:
        return {"status": "wrong", "message": f"{type(error).__name__}: {error}"[:2000]}
    return {"status": "ok", **finite(figures)}
