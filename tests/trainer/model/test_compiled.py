"""A layer in the code that torch's compiler makes by default, beside the eager one."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F

from support.models import LLAMA, whole
from trainer.model.transformer import LayerOptions, Stage

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_compiled_code_has_the_loss_and_gradients_of_the_eager_layer(recompute: str) -> None:
    model = LLAMA.model_copy(update={"num_layers": 1})
    torch.manual_seed(0)
    tokens = torch.randint(model.vocab_size, (2, model.seq_length + 1))
    found = []
    eager = whole(model)
    compiled = Stage(model, options=LayerOptions(recompute, compiled=True))
    compiled.load_state_dict(eager.state_dict())
    torch._dynamo.reset()
    for stage in (eager, compiled):
        loss = F.cross_entropy(stage(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].t().flatten())
        loss.backward()
        found.append({"loss": loss.detach(), **{n: p.grad for n, p in stage.named_parameters()}})
    assert torch._dynamo.utils.counters["inductor"]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
