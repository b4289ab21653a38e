"""Activation offload: the same bits, buffers that are used again, and two layers on the device."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from analysis.cost.activations import layer_bytes
from search_spaces.known import framework_named
from support.models import GPT, LATENT, LLAMA, whole
from trainer.model import offload
from trainer.model.offload import Offload
from trainer.plan.fields import Recompute
from trainer.plan.jobs import RECOMPUTE, jobs
from trainer.plan.model import ModelConfig

WINDOWS = LLAMA.model_copy(update={"windowed_layers": 2, "window_size": 3})
WIDE = GPT.model_copy(
    update={"num_layers": 8, "hidden_size": 64, "num_heads": 4, "vocab_size": 16, "seq_length": 256}
)
"""Plain kernels, of which a CPU keeps what a GPU does."""


class Counted(Offload):
    """Notes the buffers that it makes, and the most bytes on the device and at the host."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.made: list[Tensor] = []
        self.layers: list[offload._Layer] = []
        self.most = self.most_at_host = 0

    def fetch(self, layer: offload._Layer) -> None:
        super().fetch(layer)
        self._note()

    def _copy(self, layer: offload._Layer, pairs: list[tuple[Tensor, Tensor]]) -> None:
        super()._copy(layer, pairs)
        self.layers.append(layer)
        self._note()

    def _note(self) -> None:
        memories = [memory for layer in {*self.layers} for memory in layer.memories()]
        there = [memory.device.nbytes for memory in memories if memory.device is not None]
        self.most = max(self.most, sum(there))
        hosted = [memory.host.nbytes for memory in memories if memory.host is not None]
        self.most_at_host = max(self.most_at_host, sum(hosted))

    def _buffer(self, like: Tensor) -> Tensor:
        buffer = super()._buffer(like)
        if all(buffer.data_ptr() != other.data_ptr() for other in self.made):
            self.made.append(buffer)
        return buffer

    @property
    def nbytes(self) -> int:
        """Of all buffers, which have powers of two."""
        return sum(buffer.untyped_storage().nbytes() for buffer in self.made)


def tokens(model: ModelConfig, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.vocab_size, (batch, model.seq_length), generator=generator)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "model", [GPT, LLAMA, LATENT, WINDOWS], ids=["gpt", "llama", "latent", "windows"]
)
def test_gradients_are_the_same_to_the_bit_with_several_micro_batches_in_flight(
    model: ModelConfig, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order their backward passes come, and again with buffers of the first time."""
    monkeypatch.setattr(offload, "LEAST_BYTES", 1)
    found = []
    for moved in (False, True):
        moves = Counted() if moved else None
        stage = whole(model, recompute=recompute, offload=moves)
        gradients, made = [], []
        for order in ((0, 1, 2), (2, 0, 1)):
            losses = [stage(tokens(model, seed=n)).square().sum() for n in range(3)]
            for number in order:
                losses[number].backward()
            gradients += [parameter.grad.clone() for parameter in stage.parameters()]
            if moves is not None:
                made.append(len(moves.made))
                assert sum(map(len, moves.free.values())) == made[-1]
        assert len({*made}) == (1 if moved else 0) and all(made)
        found.append(gradients)
    for plain, again in zip(*found, strict=True):
        assert torch.equal(plain, again)


def test_what_has_another_size_in_each_pass_takes_the_same_buffers() -> None:
    """As have the rows of experts, which get other tokens each time."""
    moves, layer = Counted(), nn.Linear(64, 64)
    for rows in range(129, 257):
        with moves.keeping(True, (layer, None)):
            loss = layer(torch.ones(rows, 64) * 1.0).tanh().sum()
        loss.backward()
    assert len(moves.made) == 2  # of the product and of its result


def test_weights_and_what_all_layers_read_stay_and_evaluation_moves_nothing() -> None:
    moves = Counted()
    stage = whole(LLAMA, offload=moves).bfloat16()
    with mock.patch.object(offload, "LEAST_BYTES", 1):
        with torch.no_grad():
            stage(tokens(LLAMA, 7))
        assert not moves.made
        stage(tokens(LLAMA, 7)).sum().backward()
    assert moves.made and all(buffer.numel() % 7 == 0 for buffer in moves.made)  # as no weight is


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_host_holds_the_priced_bytes_and_the_device_those_of_two_layers(
    recompute: Recompute,
) -> None:
    """As many as the cost model says that layers keep, which the device has no longer."""
    plain = {"mbs": 1, "tp": 1, "dp": 1, "gas": 1, "pp": 1, "zero_stage": 0}
    code = np.array([RECOMPUTE[recompute]])
    layer = layer_bytes(jobs(plain, WIDE), framework_named("meshtune"), code)[0]
    kept, moves = [], None
    for moved in (False, True):
        moves = Counted() if moved else None
        stage = whole(WIDE, recompute=recompute, offload=moves).bfloat16()
        with MemTracker() as tracker:
            loss = stage(tokens(WIDE, 1)).sum()
            (now,) = tracker.get_tracker_snapshot("current").values()
        kept.append(now["Total"])
        loss.backward()
    assert moves is not None
    assert moves.most_at_host == WIDE.num_layers * layer
    assert moves.most == 2 * layer
    assert kept[1] - moves.nbytes == kept[0] - (WIDE.num_layers - 1) * layer  # one is leaving
