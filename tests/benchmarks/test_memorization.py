"""The memorization benchmark: decoding, its data, and what it would find."""

from __future__ import annotations

import pytest
import torch

from benchmarks.memorization.__main__ import report
from benchmarks.memorization.decoding import greedy
from benchmarks.memorization.study import LENGTH, RECITED, passages, recited, schedule
from support.models import GPT, MODELS, whole
from trainer.model.transformer import Stage
from trainer.plan.model import ModelConfig
from trainer.plan.sections import LRScheduler


def written_without_cache(stage: Stage, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """All tokens so far through the whole model, filled up to its length, for each new one."""
    length = stage.model.seq_length
    for size in range(tokens.size(1), tokens.size(1) + count):
        padded = torch.nn.functional.pad(tokens, (0, length - size))
        following = stage(padded)[size - 1].argmax(-1)
        tokens = torch.cat((tokens, following[:, None]), 1)
    return tokens[:, -count:]


@pytest.mark.parametrize("model", MODELS)
def test_decoding_with_a_cache_writes_what_decoding_without_writes(model: ModelConfig) -> None:
    stage = whole(model)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(model.vocab_size, (3, 5), generator=generator)
    with torch.no_grad():
        for parameter in stage.parameters():  # so that it does not repeat one token
            if parameter.dim() > 1:
                parameter.normal_(0, 0.5, generator=generator)
        expected = written_without_cache(stage, prompt, 7)
        assert torch.equal(greedy(stage, prompt, 7), expected)
        assert torch.equal(written_without_cache(stage, prompt, 7), expected), "left as it was"
    assert len(expected.unique()) > 3


class Reciting(torch.nn.Module):
    """Continues every passage that it knows."""

    def __init__(self, known: torch.Tensor) -> None:
        super().__init__()
        self.known = known
        self.model, self.blocks, self.positions = GPT, torch.nn.ModuleDict(), None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        begin = self.chunks[0].start
        following = self.known[: len(tokens), begin + 1 : begin + tokens.size(1) + 1]
        return torch.nn.functional.one_hot(following.t(), 300).float()


def test_a_passage_is_memorized_if_all_of_its_last_tokens_are_right() -> None:
    bucket, _ = passages(seed=1, count=4)
    assert bucket.shape == (4, LENGTH + 1)
    known = bucket.clone()
    known[0, -1] += 1
    known[1, -RECITED] += 1
    known[2, -RECITED - 1] += 1  # before the part that counts
    found = recited(Reciting(known), bucket)
    assert found.exact == 0.5
    assert found.tokens == pytest.approx(1 - 2 / (4 * RECITED))


def test_passages_depend_on_the_seed_alone() -> None:
    first, again, other = (passages(seed, 3) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert torch.equal(next(first[1]), next(again[1]))


def test_the_learning_rate_rises_while_warming_up_and_then_falls() -> None:
    rates = [LRScheduler(**schedule(5, 20)).factor(step) for step in range(20)]
    assert rates[:6] == sorted(rates[:6]) and rates[5:] == sorted(rates[5:], reverse=True)


@pytest.mark.parametrize(
    ("standard", "goldfish", "good"), [(0.8, 0.0, True), (0.8, 0.1, False), (0.0, 0.0, False)]
)
def test_the_verdict_needs_recital_without_and_none_with_the_goldfish_loss(
    standard: float, goldfish: float, good: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def shares(exact: float) -> dict[int, list[dict[str, float]]]:
        return {0: [{"exact": 0.0, "tokens": 0.3}], 64: [{"exact": exact, "tokens": 0.5}]}

    assert report({"standard": shares(standard), "goldfish": shares(goldfish)}) is good
    assert f"| 64 | {100 * standard:.0f} % | 50 % | {100 * goldfish:.0f} % |" in (
        capsys.readouterr().out
    )
