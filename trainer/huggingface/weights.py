"""Weights of ``transformers``: loaded into any layout, and exported for ``from_pretrained``.

Each rank reads what it holds; one rank writes, from a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import uuid
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from foundation.files import FileError, read_json
from trainer.checkpoint.chunks import Chunk
from trainer.checkpoint.folders import read_record
from trainer.checkpoint.integrity import CheckpointError, SafeReader
from trainer.huggingface.names import Architecture, architecture_of, check_config, config_of
from trainer.huggingface.safetensors import SINGLE, read_folder, write_file
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig
from trainer.plan.shards import Shape, segments

Parts = list[tuple[str, Shape]]
_WORDS = ("embedding.weight", "head.weight")


class Weights:
    """Weights in a folder, as slices of our parameters.

    They must be of ``model``, whose vocabulary may be larger (further words get the mean of all)
    and whose sequences may be shorter.

    Raises ConfigError if they are of another model, or cannot be read.
    """

    def __init__(self, folder: Path, model: ModelConfig) -> None:
        self.folder = folder
        self.model = model
        self.architecture: Architecture = architecture_of(model)
        try:
            config = read_json(folder / "config.json")
        except FileError as error:
            raise ConfigError(f"initial_load_path: {error}") from None
        try:
            if not isinstance(config, dict):
                raise ConfigError("is no record")
            check_config(model, config)
        except ConfigError as error:
            raise ConfigError(f"initial_load_path: {folder / 'config.json'} {error}") from None
        self.tensors = read_folder(folder)
        self.means: dict[str, Tensor] = {}

    def fill(self, chunks: Iterable[Chunk]) -> None:
        """Set a rank's master weights; moments stay as they are."""
        with torch.no_grad():
            for chunk in chunks:
                kind, name = chunk.name.split(".", 1)
                if kind == "model":
                    self._fill(chunk, name)

    def _fill(self, chunk: Chunk, name: str) -> None:
        first, *column = chunk.slice.offsets
        rows, *width = chunk.slice.sizes
        columns = slice(column[0], column[0] + width[0]) if column else None
        done = 0
        sources = self.architecture.sources(name)
        if not sources:
            return
        tensors = [self._tensor(theirs) for theirs in sources]
        turned = self.architecture.is_transposed(name)
        wholes = [tensor.t() if turned else tensor for tensor in tensors]
        rows_differ = name in (*_WORDS, "positions.weight")
        if any(whole.shape[1:] != chunk.whole[1:] for whole in wholes) or (
            sum(whole.size(0) for whole in wholes) != chunk.whole[0] and not rows_differ
        ):
            raise self._misfit(sources, tensors, chunk)
        for number, begin, offset, length in segments(map(len, wholes), first, rows):
            part = wholes[number][begin : begin + length]
            target = chunk.data[offset : offset + length]
            target.copy_(part if columns is None else part[:, columns])
            done += length
        if done < rows and name in _WORDS:
            (theirs,) = sources
            if theirs not in self.means:
                self.means[theirs] = self._tensor(theirs).float().mean(0)
            chunk.data[done:] = self.means[theirs][columns]
        elif done < rows:
            raise self._misfit(sources, tensors, chunk)

    def _tensor(self, name: str) -> Tensor:
        for known in (name, name.removeprefix("transformer.")):
            if known in self.tensors:
                return self.tensors[known]
        raise ConfigError(
            f"initial_load_path: {self.folder} has no tensor {name}: fetch all its files"
        )

    def _misfit(self, names: list[str], tensors: list[Tensor], chunk: Chunk) -> ConfigError:
        pairs = zip(names, tensors, strict=True)
        shapes = ", ".join(f"{name} with shape {list(tensor.shape)}" for name, tensor in pairs)
        return ConfigError(
            f"initial_load_path: {self.folder} has {shapes}, of which {chunk.name} with shape "
            f"{list(chunk.whole)} cannot be made"
        )


def export(checkpoint: Path, out: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in float32; one tensor is in memory at once.

    The folder gets its name, in place of an older one, when all is in it. Raises ConfigError if the
    model is not one of ``transformers``, CheckpointError if the checkpoint cannot be read.
    """
    model = ModelConfig.model_validate(read_record(checkpoint).model)
    architecture = architecture_of(model)
    reader = SafeReader(checkpoint)
    saved = reader.read_metadata().state_dict_metadata
    sizes: dict[str, Shape] = {}
    for key, entry in saved.items():
        if key.startswith("model."):
            if not isinstance(entry, TensorStorageMetadata):
                raise CheckpointError(f"{key} is no tensor")
            sizes[key.removeprefix("model.")] = tuple(entry.size)
    parts = {name: _parts(architecture, model, name, size) for name, size in sizes.items()}
    shapes = {theirs: shape for each in parts.values() for theirs, shape in each}
    draft = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        (draft / "config.json").write_text(json.dumps(config_of(model), indent=2) + "\n")
        write_file(draft / SINGLE, shapes, _tensors(reader, architecture, sizes, parts))
        if out.exists():
            shutil.rmtree(out)
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _tensors(
    reader: SafeReader, architecture: Architecture, sizes: dict[str, Shape], parts: dict[str, Parts]
) -> Iterator[tuple[str, Tensor]]:
    for name, size in sizes.items():
        whole = torch.empty(size)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load({f"model.{name}": whole}, storage_reader=reader, no_dist=True)
        if not parts[name] and whole.any():
            raise ConfigError(
                f"{name} is not 0: {architecture.class_name} chooses experts without a bias; train "
                "with moe_router_bias_update_rate: 0"
            )
        turned = architecture.is_transposed(name)
        begin = 0
        for theirs, shape in parts[name]:
            rows = shape[1] if turned else shape[0]
            part = whole[begin : begin + rows]
            yield theirs, (part.t() if turned else part).contiguous()
            begin += rows


def _parts(architecture: Architecture, model: ModelConfig, name: str, whole: Shape) -> Parts:
    """Names and shapes of the exported tensors that one of our parameters becomes."""
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
