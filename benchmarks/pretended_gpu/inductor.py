"""The compiler's code for a layer on GPUs, without one: kernels, bytes, registers and spills.

    python -m benchmarks.pretended_gpu.inductor [none selective full]   # a JSON object a line
    python -m benchmarks.pretended_gpu.inductor --table     # into docs/results/gpu-kernels.md

torch's compiler writes the code of a layer with the widths of Llama 3.1 8B for an H100; Triton and
ptxas make machine code of its kernels. Each takes its first configuration: which is fastest, only a
GPU could tell.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch._inductor.config as settings
import torch.nn.functional as F
import triton
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import view_to_reshape
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import joint_graph
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import GraphModule, Node
from triton.backends.compiler import GPUTarget

from benchmarks.pretended_gpu import device
from benchmarks.trainer import gpu_tables
from benchmarks.trainer.gpu_cases import WIDTHS
from benchmarks.trainer.triton_kernels import ARCHITECTURES, machine_code
from trainer.model import recompute
from trainer.model.transformer import Block, LayerOptions, Places, run_layer
from trainer.plan.fields import Recompute
from trainer.plan.model import ModelConfig

KINDS: tuple[Recompute, ...] = ("none", "selective", "full")
GPUS = ("sm80", "sm90", "sm100")
CARD = SimpleNamespace(
    **vars(device.H100), warp_size=32, max_threads_per_multi_processor=2048, uuid="0",
    regs_per_multiprocessor=65536, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
)  # fmt: skip
_TRITON = re.compile(r"(\w+) = async_compile\.triton\('\w+', '''(.*?)'''", re.DOTALL)
_OTHERS = re.compile(r"(extern_kernels\.\w+|torch\.ops\.\w+\.\w+)(?:\.\w+)?\(")
_NO_KERNELS = {"torch.ops.inductor._reinterpret_tensor"}


@torch.library.custom_op("pretended::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel that a GPU would take for attention: the compiler needs its shapes only."""
    raise NotImplementedError


@torch.library.custom_op("pretended::attention_backward", mutates_args=())
def attention_backward(grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients."""
    raise NotImplementedError


attention.register_fake(
    lambda query, *_: (
        torch.empty_like(query),
        query.new_empty(query.shape[:3], dtype=torch.float32),
    )
)
attention_backward.register_fake(lambda _, kept: tuple(map(torch.empty_like, kept[:3])))
attention.register_autograd(
    lambda ctx, grad, _: attention_backward(grad, [*ctx.saved_tensors]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


class Driver:
    """Triton's driver of a GPU that is not there."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda


def prepare() -> None:
    """Give the compiler the pretended device, and keep it from running anything there."""
    cuda: Any = torch.cuda
    context = cuda.device
    device.use(CARD)
    cuda.device, cuda._get_device_properties = context, lambda *_: CARD
    cuda.get_device_name = lambda *_: CARD.name
    cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    cuda.default_generators = (torch.Generator(),)
    version: Any = torch.version
    version.cuda = "13.0"
    for name in ("getDevice", "getDeviceCount", "exchangeDevice", "maybeExchangeDevice"):
        setattr(torch._C, f"_cuda_{name}", lambda *_: 0)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0
    triton.runtime.driver.set_active(Driver())
    settings.force_disable_caches, settings.compile_threads = True, 1
    settings.joint_graph_constant_folding = False
    patterns: Any = joint_graph
    patterns.lazy_init = lambda *_: None  # traced with real tensors of the device
    F.scaled_dot_product_attention = lambda query, key, value, **_: attention(query, key, value)[0]
    recompute._ATTENTION.add(torch.ops.pretended.attention.default)


class Written:
    """Code of a layer's passes."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.moved: list[int] = []
        self.kept: list[int] = []

    def lower(self, graph: GraphModule, _: Any) -> Any:
        """A graph's code, and a function that gives outputs of its shapes."""
        view_to_reshape(graph)
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        fake = next(x.fake_mode for x in inputs if isinstance(x, Tensor))
        with unset_fake_temporarily(), V.set_fake_mode(fake):
            post_grad_passes(graph, is_inference=False)
            lowered = GraphLowering(graph, example_inputs=inputs, is_inference=False)
            with V.set_graph_handler(lowered), V.set_debug_handler(DebugContext()):
                lowered.run(*inputs)
                code = cast(Any, lowered.codegen()[0])
                self.code.append(getattr(code, "value", code))
                self.moved.append(int(lowered.count_bytes()[0]))
        outputs: Any = graph.graph.output_node().args[0]
        made = {n for n in outputs[1:] if isinstance(n, Node) and n.op != "placeholder"}
        self.kept.append(sum(n.meta["val"].nbytes for n in made if "val" in n.meta))

        def run(*_: Any) -> tuple[Any, ...]:
            shapes = (n.meta["val"] if isinstance(n, Node) else n for n in outputs)
            return tuple(
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
                if isinstance(x, Tensor)
                else x
                for x in shapes
            )

        return run

    def backend(self) -> Any:
        """The compiler's own steps around ``lower``."""

        def partition(graph: Any, inputs: Any, **options: Any) -> Any:
            joint_graph.joint_graph_passes(graph)
            return min_cut_rematerialization_partition(
                graph, inputs, **options, compiler="inductor"
            )

        table = select_decomp_table()
        return aot_autograd(
            fw_compiler=self.lower, bw_compiler=self.lower, partition_fn=partition,
            decompositions=table,
        )  # fmt: skip


def layer(kind: Recompute, **widths: Any) -> dict[str, Any]:
    """Code that the compiler makes of a layer, forward and backward pass together.

    ``widths``: what differs from ``WIDTHS``.
    """
    model = ModelConfig(**{**WIDTHS, **widths})
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    written = Written()
    torch._dynamo.reset()
    with FakeTensorMode():
        block = Block(model, LayerOptions(kind, compiled=True))
        for module in block.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape, **options)))
        x = torch.empty(model.seq_length, 1, model.hidden_size, **options).requires_grad_()
        angles = torch.empty(model.seq_length, 1, 1, model.head_dim // 2, **options)
        compiled = torch.compile(
            run_layer, backend=written.backend(), fullgraph=True, dynamic=False
        )
        y = compiled(block, x, Places((angles, angles.clone()), None))
        y.backward(torch.empty_like(y))
    text = "\n".join(written.code)
    others = [name for name in _OTHERS.findall(text) if name not in _NO_KERNELS]
    kernels = dict(_TRITON.findall(text))
    return {
        "recompute": kind,
        "launches": len(re.findall(r"^\s+triton_\w+\.run\(", text, re.MULTILINE)),
        "products": sum(name.startswith("extern_kernels.") for name in others),
        "others": sorted(name for name in others if not name.startswith("extern_kernels.")),
        "moved": sum(written.moved),
        "kept": written.kept[0],
        "gpus": {gpu: [machine(*kernel, gpu) for kernel in kernels.items()] for gpu in GPUS},
    }


def machine(name: str, source: str, gpu: str) -> dict[str, Any]:
    """A kernel's machine code: registers, bytes spilled and shared."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))
        space: dict[str, Any] = {"__file__": str(path), "__name__": name}
        exec(compile(path.read_text(), str(path), "exec"), space)
        tuner = space[name]
        config, names = tuner.configs[0], tuner.fn.arg_names
        given = {**tuner.triton_meta["constants"], **config.kwargs}
        constants = {(names.index(key),): value for key, value in given.items()}
        code = triton.compile(
            triton.compiler.ASTSource(
                tuner.fn, dict(tuner.triton_meta["signature"]), constants,
                tuner.triton_meta["configs"][0],
            ),
            target=GPUTarget("cuda", ARCHITECTURES[gpu], 32),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )  # fmt: skip
    found = machine_code(code.asm["ptx"], gpu)
    return {key: found[key] for key in ("registers", "spills")} | {"shared": code.metadata.shared}


def rows(found: dict[str, Any]) -> list[list[object]]:
    """A layer's rows of the table: one for each GPU."""
    units = found["kept"] / (WIDTHS["seq_length"] * WIDTHS["hidden_size"] * 2)
    counted = [found["launches"], found["products"], len(found["others"])]
    sizes = [found["moved"] >> 20, f"{units:.1f}"]
    return [
        [found["recompute"], gpu, *counted, *sizes]
        + [max(kernel[key] for kernel in kernels) for key in ("registers", "spills", "shared")]
        for gpu, kernels in found["gpus"].items()
    ]


def main() -> None:
    """Compile, and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    prepare()
    found = []
    for kind in args.kinds or KINDS:
        found.append(layer(kind))
        if not args.table:
            print(json.dumps(found[-1] | {"rows": rows(found[-1])}), flush=True)
    if args.table:
        head = (
            "| recomputation | GPU | Triton kernels | products | others | MiB moved | kept | "
            "registers | bytes spilled | bytes shared |"
        )
        gpu_tables.write("compiled", head, [row for one in found for row in rows(one)])


if __name__ == "__main__":
    main()
