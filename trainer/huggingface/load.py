"""Begin from weights of ``transformers``, in any layout: each rank reads what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from foundation.files import FileError, read_json
from trainer.checkpoint.chunks import Chunk
from trainer.huggingface.names import Architecture, architecture_of, check_config
from trainer.huggingface.safetensors import read_folder
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig
from trainer.plan.shards import segments

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
        """Give a rank's master weights their values; moments stay as they are."""
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
        shapes = ", ".join(
            f"{name} with shape {list(tensor.shape)}"
            for name, tensor in zip(names, tensors, strict=True)
        )
        return ConfigError(
            f"initial_load_path: {self.folder} has {shapes}, of which {chunk.name} with shape "
            f"{list(chunk.whole)} cannot be made"
        )
