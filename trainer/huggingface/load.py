"""Begin from weights of ``transformers``, in any layout: each rank reads what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.chunks import Chunk
from trainer.config import ConfigError, ModelConfig
from trainer.files import FileError, read_json
from trainer.huggingface.names import Architecture, architecture_of, check_config
from trainer.huggingface.safetensors import read_folder


class Weights:
    """The weights in a folder, as slices of our parameters.

    Args:
        folder: of ``config.json`` and safetensors.
        model: that they must be of. Its vocabulary may be larger: further words are then the mean
            of all, which no prediction prefers. Its sequences may be shorter.

    Raises:
        ConfigError: if they are of another model, or cannot be read.
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
        before = 0  # rows of the tensors that come first
        done = 0
        for theirs in self.architecture.sources(name):
            tensor = self._tensor(theirs)
            whole = tensor.t() if self.architecture.is_transposed(name) and columns else tensor
            low, high = max(first, before), min(first + rows, before + whole.size(0))
            if low < high:
                part = whole[low - before : high - before]
                target = chunk.data[low - first : high - first]
                part = part if columns is None else part[:, columns]
                if part.shape != target.shape:
                    raise self._misfit(theirs, tensor, chunk)
                target.copy_(part)
                done += high - low
            before += whole.size(0)
        if done < rows and name in ("embedding.weight", "head.weight"):
            (theirs,) = self.architecture.sources(name)
            if theirs not in self.means:
                self.means[theirs] = self._tensor(theirs).float().mean(0)
            chunk.data[done:] = self.means[theirs][columns]
        elif done < rows:
            raise self._misfit(theirs, tensor, chunk)

    def _tensor(self, name: str) -> Tensor:
        for known in (name, name.removeprefix("transformer.")):
            if known in self.tensors:
                return self.tensors[known]
        raise ConfigError(f"initial_load_path: {self.folder} has no tensor {name}")

    def _misfit(self, name: str, tensor: Tensor, chunk: Chunk) -> ConfigError:
        return ConfigError(
            f"initial_load_path: {self.folder}: {name} has shape {list(tensor.shape)}, of which "
            f"{chunk.name} with shape {list(chunk.whole)} cannot be made"
        )
