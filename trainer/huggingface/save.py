"""A checkpoint's weights for ``transformers``: a folder that ``from_pretrained`` takes."""

from __future__ import annotations

import json
import shutil
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint.folders import read_record
from trainer.checkpoint.integrity import SafeReader
from trainer.huggingface.names import Architecture, architecture_of, config_of
from trainer.huggingface.safetensors import SINGLE, write_file
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig


def export(checkpoint: Path, out: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in float32; one tensor is in memory at once.

    The folder gets its name, in place of an older one, when all is in it.

    Raises:
        ConfigError: if the model is not one of ``transformers``.
        CheckpointError: if the checkpoint cannot be read.
        OSError: if the folder cannot be written.
    """
    model = ModelConfig.model_validate(read_record(checkpoint).model)
    architecture = architecture_of(model)
    saved = SafeReader(checkpoint).read_metadata().state_dict_metadata
    names = [name.removeprefix("model.") for name in saved if name.startswith("model.")]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        entry = saved[f"model.{name}"]
        assert isinstance(entry, TensorStorageMetadata)
        for theirs, shape in _parts(architecture, model, name, tuple(entry.size)):
            shapes[theirs] = shape
    draft = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        (draft / "config.json").write_text(json.dumps(config_of(model), indent=2) + "\n")
        write_file(draft / SINGLE, shapes, _tensors(checkpoint, architecture, model, names))
        if out.exists():
            shutil.rmtree(out)
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _tensors(
    checkpoint: Path, architecture: Architecture, model: ModelConfig, names: list[str]
) -> Iterator[tuple[str, Tensor]]:
    reader = SafeReader(checkpoint)
    saved = reader.read_metadata().state_dict_metadata
    for name in names:
        whole = torch.empty(saved[f"model.{name}"].size)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load({f"model.{name}": whole}, storage_reader=reader, no_dist=True)
        parts = _parts(architecture, model, name, tuple(whole.shape))
        if not parts and whole.any():
            raise ConfigError(
                f"{name} is not 0: {architecture.class_name} chooses experts without a bias; train "
                "with moe_router_bias_update_rate: 0"
            )
        turned = architecture.is_transposed(name)
        begin = 0
        for theirs, shape in parts:
            rows = shape[1] if turned else shape[0]
            part = whole[begin : begin + rows]
            yield theirs, (part.t() if turned else part).contiguous()
            begin += rows


def _parts(
    architecture: Architecture, model: ModelConfig, name: str, whole: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...]]]:
    """Their tensors and shapes that one of our parameters becomes."""
    sources = architecture.sources(name)
    rows = [whole[0] // len(sources)] * len(sources) if sources else []
    if len(sources) == 3 and ".qkv." in name:
        keys = model.kv_heads * model.head_dim
        rows = [whole[0] - 2 * keys, keys, keys]
    turned = architecture.is_transposed(name)
    shapes = [(count, *whole[1:]) for count in rows]
    return [
        (theirs, tuple(reversed(shape)) if turned else shape)
        for theirs, shape in zip(sources, shapes, strict=True)
    ]
