"""The pretended device: torch's functions for CUDA, for tensors that have shapes and no numbers.

What a step asks of torch is checked as far as it can be without numbers: schemas, devices, formats,
the rules of attention's kernels, the order of streams, and where the host waits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.pretended_gpu.timeline import Event, Stream, timeline

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30,
    multi_processor_count=132, gcnArchName="",
)  # fmt: skip
MI250X = SimpleNamespace(
    name="AMD Instinct MI250X", major=9, minor=0, total_memory=64 << 30, multi_processor_count=110,
    gcnArchName="gfx90a:sramecc+:xnack-",
)  # fmt: skip


class _FakeTensors(FakeTensorMode):
    avoid_device_init = True
    """Numbers given to ``torch.tensor`` become a tensor on the host first."""


class Recorder(TorchDispatchMode):
    """Launches each operator on the current stream of the timeline."""

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and args[0].is_cuda:
            timeline.waits["item"] += 1
            return True if args[0].dtype == torch.bool else 1
        given = args
        if name == "_to_copy" and type(args[0]) is Tensor:  # a batch, which a thread has read
            given = (self.fake.from_tensor(args[0]), *args[1:])
        out = func(*given, **kwargs)
        if name in _ALLOCATIONS:
            if kwargs.get("pin_memory"):
                _PINNED.add(out)
            elif out.is_cuda:
                timeline.allocated(out)  # by the current stream, whichever uses it first
        returns = func._schema.returns
        if any(r.alias_info and not r.alias_info.is_write for r in returns) or name in _NO_KERNEL:
            return out
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for argument, value in _given(func._schema, args, kwargs):
            changed = argument.alias_info is not None and argument.alias_info.is_write
            collect(value, writes if changed else reads)
        collect(out, writes)
        if name in ("copy_", "_to_copy"):
            self._note_copy(name, args, kwargs, out)
        if any(tensor.is_cuda for tensor in (*reads, *writes)):
            reads, writes = (
                [x for x in some if x.is_cuda or x in _PINNED] for some in (reads, writes)
            )
            launch(name, reads, writes)
        return out

    def _note_copy(self, name: str, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        """A copy from or to the host: it waits unless it is told not to, from pinned memory."""
        source = args[1] if name == "copy_" else args[0]
        if source.is_cuda == out.is_cuda:
            return
        free = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        host = out if source.is_cuda else source
        # A scalar's copy is part of the launch.
        if (not free or host not in _PINNED) and host.dim():
            timeline.waits["copy to host" if source.is_cuda else "copy from host"] += 1


class _Memories:
    """Memory of tensors, which stay alive."""

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}

    def add(self, tensor: Tensor) -> None:
        self.held[tensor.untyped_storage()._cdata] = tensor

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.held


_PINNED = _Memories()
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
_NO_KERNEL = {
    *_ALLOCATIONS, "prim::device", "resize_", "set_", "_unsafe_view", "record_stream",
    "lift_fresh", "is_same_size",
}  # fmt: skip


def _given(schema: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for index, argument in enumerate(schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def collect(value: Any, into: list[Tensor]) -> None:
    """Add the tensors of an argument or a result."""
    if isinstance(value, Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            collect(one, into)


def launch(name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
    """A kernel on the current stream; what it reads and writes of the device counts once a
    tensor.
    """
    timeline.launch(name, reads, writes, None)
    timeline.kernels[name] += 1
    timeline.bytes[name] += sum(tensor.nbytes for tensor in (*reads, *writes) if tensor.is_cuda)


# ---- attention: which kernel a GPU would take ----


def _can_cudnn(p: Any) -> bool:
    head = p.query.size(-1)
    return not _amd() and _half(p) and head % 8 == 0 and head <= 128


def _can_flash(p: Any) -> bool:
    return _half(p) and p.attn_mask is None and p.query.size(-1) <= 256


def _can_efficient(p: Any) -> bool:
    """Grouped queries are refused throughout: torch's releases differ on NVIDIA."""
    aligned = p.query.size(-1) % (8 if _half(p) else 4) == 0
    fits = p.attn_mask is None or p.attn_mask.dtype in (torch.bool, p.query.dtype)
    return aligned and fits and p.query.size(1) == p.key.size(1)


def _half(p: Any) -> bool:
    return p.query.dtype in (torch.bfloat16, torch.float16)


def _amd() -> bool:
    return bool(torch.version.hip)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention`` by the kernel that torch's rules take."""
    given = SimpleNamespace(query=query, key=key, value=value, attn_mask=attn_mask)
    assert enable_gqa or query.size(1) == key.size(1), "keys are shared, and nothing says so"
    ops = torch.ops.aten
    mask = None
    if attn_mask is not None:
        mask = attn_mask.expand(*query.shape[:3], key.size(2))
    for backend in map(SDPBackend, torch._C._get_sdp_priority_order()):
        if backend == SDPBackend.CUDNN_ATTENTION and _can_cudnn(given):
            return ops._scaled_dot_product_cudnn_attention(
                query, key, value, mask, True, 0.0, is_causal, False
            )[0]
        if backend == SDPBackend.FLASH_ATTENTION and _can_flash(given):
            return ops._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]
        if backend == SDPBackend.EFFICIENT_ATTENTION and _can_efficient(given):
            return ops._scaled_dot_product_efficient_attention(
                query, key, value, mask, True, 0.0, is_causal
            )[0]
    raise RuntimeError("No available kernel. Aborting execution.")


# ---- torch's functions ----


class _RmsNorm(torch.autograd.Function):
    """``F.rms_norm`` by a GPU's fused kernels, which torch's CPU build lacks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out, scale = torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        launch("_fused_rms_norm", [x, weight], [out, scale])
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        grads = torch.empty_like(x), torch.empty_like(weight)
        launch("_fused_rms_norm_backward", [grad, x, weight, scale], [*grads])
        return grads


def use(card: SimpleNamespace) -> None:
    """Be such a device from now on."""
    torch.version.hip = "7.0" if card.gcnArchName else None
    cuda: Any = torch.cuda
    for name, function in _functions(card).items():
        setattr(cuda, name, function)


def install() -> None:
    """Put the device in the place of the one that this build of torch does not have."""
    use(H100)
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = Stream, Event
    accelerator: Any = torch.accelerator
    accelerator.current_stream = lambda *_: timeline.stream
    tensor: Any = Tensor
    tensor.pin_memory = _pinned
    tensor.record_stream = lambda held, stream: timeline.keep(held, stream)
    fake: Any = FakeTensor
    fake.tolist = _read
    generator = torch.Generator
    torch.Generator = lambda *_: generator()  # type: ignore[misc, assignment]
    nn.Module.to_empty = _to_empty  # type: ignore[method-assign]
    own = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda query, *args, **kwargs: (
        _attention if query.is_cuda else own
    )(query, *args, **kwargs)
    rms_norm = F.rms_norm
    F.rms_norm = lambda x, shape, weight=None, eps=None: (
        _RmsNorm.apply(x, weight) if x.is_cuda else rms_norm(x, shape, weight, eps)
    )
    for name, rule in (("cudnn", _can_cudnn), ("flash", _can_flash), ("efficient", _can_efficient)):
        setattr(
            torch.backends.cuda, f"can_use_{name}_attention", lambda p, debug=False, r=rule: r(p)
        )


def _functions(card: SimpleNamespace) -> dict[str, Any]:
    """The functions of ``torch.cuda``."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 8,
        "set_device": lambda device: None,
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext() if stream is None else stream,
        "current_stream": lambda *_: timeline.stream,
        "default_stream": lambda *_: timeline.main,
        "synchronize": lambda *_: timeline.waits.update(["synchronize"]),
        "get_device_properties": lambda *_: card,
        "get_device_capability": lambda *_: (card.major, card.minor),
        "is_bf16_supported": lambda **_: True,
        "mem_get_info": lambda *_: (card.total_memory // 2, card.total_memory),
        "max_memory_allocated": lambda *_: card.total_memory // 4,
        "max_memory_reserved": lambda *_: card.total_memory // 2,
        "memory_reserved": lambda *_: card.total_memory // 2,
        "set_per_process_memory_fraction": lambda *_: None,
        "get_rng_state": lambda *_: None,
        "set_rng_state": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "_sleep": lambda cycles: None,
        "nccl": SimpleNamespace(version=lambda: (2, 28, 3)),
    }


def _to_empty(module: nn.Module, *, device: torch.device, recurse: bool = True) -> nn.Module:
    """``Module.to_empty`` by new parameters: fake tensors' storage cannot be exchanged."""
    assert not recurse
    for name, parameter in [*module.named_parameters(recurse=False)]:
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        setattr(module, name, nn.Parameter(empty))
    return module


def _pinned(tensor: Tensor, *_: object) -> Tensor:
    copy = tensor.clone()
    _PINNED.add(copy)
    return copy


def _read(tensor: Tensor) -> Any:
    """``Tensor.tolist``, which waits once for all numbers."""
    timeline.waits["tolist"] += 1
    return [1.0] * tensor.numel() if tensor.dim() else 1.0


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Context in which tensors are the pretended device's."""
    fake = _FakeTensors(allow_non_fake_inputs=True)
    with fake, Recorder(fake):
        yield


def on_the_host(make: Callable[..., Any]) -> Callable[..., Any]:
    """The function with real tensors, for what computes with numbers on the host."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return make(*args, **kwargs)

    return made
