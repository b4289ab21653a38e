"""Runs many training cases inside one set of ranks; a program, started by the tests.

Reads a JSON line per request: ``{"jobs", "environ"}``; a job is ``{"id", "ranks", "config",
"options"}``, ``ranks`` 0 asking for the reference. All jobs of one size run in the same processes,
one after another. Writes one JSON line per job: ``{"id", "result"}`` or ``{"id", "error"}``, and at
the end of a request ``{"well"}``, whether all ranks ended as they should. The option ``observe``
holds those of ``observed_training``; ``float64`` trains in that format where the configuration says
float32.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import collective_cases
import torch
import torch.distributed as dist
import torch.nn.functional as F
from observed_training import observe
from torch._dynamo.utils import counters

import trainer.parallel.loss
import trainer.train
from trainer.data.goldfish import IGNORED, without
from trainer.loop import train
from trainer.model import transformer
from trainer.model.experts import MixtureMlp, stage_mixtures
from trainer.model.initialize import initialize
from trainer.model.offload import Offload
from trainer.model.precision import COMPUTE_DTYPE, LossScaler
from trainer.model.transformer import Stage
from trainer.plan.config import TrainConfig
from trainer.runtime.device import Device
from trainer.train import Trainer


class RandomTokens:
    """Sequences that depend on the seed and their number only."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator()
        rows = torch.stack(
            [
                torch.rand(seq_length + 1, generator=generator.manual_seed(seed * 100_000 + number))
                for number in range(first, first + count)
            ]
        )
        # A skewed distribution, so that there is something to learn.
        tokens = rows.pow(3).mul(self.vocab_size).long()
        return tokens[:, :-1], tokens[:, 1:]

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> torch.Tensor:
        """Documents of all lengths; a sample may begin within one, and be of one only."""
        found = torch.zeros(count, seq_length + 1, dtype=torch.int64)
        for row in range(count):
            generator = torch.Generator().manual_seed(seed * 100_000 + first + row)
            begins = torch.rand(seq_length + 1, generator=generator) < (first + row) % 3 / 6
            for begin in begins.nonzero().flatten().tolist():
                found[row, begin:] = begin
        return found


class HeldOut(RandomTokens):
    """Others than those that are trained on."""

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().samples(10_000 + first, count, seq_length=seq_length, seed=seed)


def reference(config: TrainConfig, global_batch: int) -> dict[str, Any]:
    """Plain training in one process: nothing of the trainer but the model's own formulas."""
    stage = Stage(config.model)
    initialize(stage, "", config.model, config.seed)
    o = config.optimizer
    matrices = [p for p in stage.parameters() if p.dim() > 1]
    vectors = [p for p in stage.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": o.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=o.lr,
        betas=(o.beta1, o.beta2),
        eps=o.eps,
    )
    data = RandomTokens(config.model.vocab_size)
    losses, norms = [], []
    chosen = follow_experts(stage)
    validations: dict[str, float] = {}
    for step in range(config.steps):
        tokens, targets = data.samples(
            step * global_batch, global_batch, seq_length=config.model.seq_length, seed=config.seed
        )
        if config.goldfish is not None:
            targets = without(tokens, targets, config.goldfish)
        if config.documents is not None:
            shape = {"seq_length": config.model.seq_length, "seed": config.seed}
            starts = data.starts(step * global_batch, global_batch, **shape)
            targets = targets.masked_fill(starts[:, 1:] != starts[:, :-1], IGNORED)
            logits = each_document(stage, tokens, starts[:, :-1])
        else:
            logits = stage(tokens).transpose(0, 1).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
        for group in adamw.param_groups:
            group["lr"] = config.lr(step)
        adamw.zero_grad()
        whole = loss + config.moe_aux_loss_coeff * auxiliary_loss(chosen, global_batch)
        whole.backward()
        norm = torch.nn.utils.clip_grad_norm_(stage.parameters(), o.grad_clip or float("inf"))
        adamw.step()
        for mixture, (_, experts) in chosen.items():
            number = mixture.router.bias.numel()
            loads = torch.bincount(experts.flatten(), minlength=number).to(mixture.router.bias)
            change = (loads.mean() - loads).sign()
            mixture.router.bias += config.moe_router_bias_update_rate * change
        losses.append(loss.item())
        norms.append(norm.item())
        done, held_out = step + 1, config.validation
        if held_out is not None and (done % held_out.freq == 0 or done == config.steps):
            validations[str(done)] = held_out_loss(stage, config, global_batch)
    biases = [mixture.router.bias.tolist() for mixture in stage_mixtures(stage)]
    return {
        "losses": losses, "grad_norms": norms, "validation_losses": validations, "biases": biases
    }  # fmt: skip


def follow_experts(stage: Stage) -> dict[MixtureMlp, tuple[torch.Tensor, torch.Tensor]]:
    """Of each mixture the scores and the chosen experts of its last forward pass."""
    found: dict[MixtureMlp, tuple[torch.Tensor, torch.Tensor]] = {}
    for mixture in stage_mixtures(stage):

        def seen(router: Any, _: Any, scores: torch.Tensor, mixture: MixtureMlp = mixture) -> None:
            found[mixture] = scores, router.choose(scores.detach(), mixture.per_token)

        mixture.router.register_forward_hook(seen)
    return found


def auxiliary_loss(
    chosen: dict[MixtureMlp, tuple[torch.Tensor, torch.Tensor]], batch: int
) -> torch.Tensor:
    """One sequence after another: DeepSeek-AI 2024, equations 17 to 20, without its factor."""
    total = torch.zeros(())
    for scores, experts in chosen.values():
        number = scores.size(-1)
        for row in range(batch):  # tokens are (sequence, batch)
            mine, picked = scores[row::batch], experts[row::batch]
            share = torch.bincount(picked.flatten(), minlength=number) / picked.numel()
            total = total + number * (share * (mine / mine.sum(-1, keepdim=True)).mean(0)).sum()
    return total / batch


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Everything that the trainer computes, sums, keeps and sends in float32, in float64."""
    narrow, wide, to_narrow = torch.float32, torch.float64, torch.Tensor.float

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        """But the factor that torch's fused AdamW takes in float32 only."""
        return tensor.double() if tensor.dim() else to_narrow(tensor)

    with (
        mock.patch.dict(COMPUTE_DTYPE, fp32=wide),
        mock.patch.object(torch, "float32", wide),
        mock.patch.object(torch.Tensor, "float", widened),
    ):
        torch.set_default_dtype(wide)
        try:
            yield
        finally:
            torch.set_default_dtype(narrow)


def each_document(stage: Stage, tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Logits of documents that are each a sequence of their own, filled up behind."""
    found = []
    for row, begins in zip(tokens, starts, strict=True):
        for begin in begins.unique().tolist():
            own = row[begins == begin]
            alone = F.pad(own, (0, len(row) - len(own)))
            found.append(stage(alone[None])[: len(own), 0])
    return torch.cat(found)


def held_out_loss(stage: Stage, config: TrainConfig, global_batch: int) -> float:
    assert config.validation is not None
    count, length = config.validation.steps * global_batch, config.model.seq_length
    tokens, targets = HeldOut(config.model.vocab_size).samples(
        0, count, seq_length=length, seed=config.seed
    )
    if config.goldfish is not None:
        targets = without(tokens, targets, config.goldfish)
    with torch.no_grad():
        logits = stage(tokens).transpose(0, 1).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED).item()


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    options = job.get("options", {})
    with in_float64() if options.get("float64") else contextlib.nullcontext():
        return run_in_format(job, options)


def run_in_format(job: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    config = TrainConfig.parse(job["config"])
    if job["ranks"] == 0:
        return reference(config, options["global_batch"])
    scaler = functools.partial(LossScaler, initial=options.get("initial_scale", 2.0**16))
    trainer.train.LossScaler = scaler
    if config.compile:
        # Graphs as the compiler gets them, run as they are: code for a CPU would take a minute.
        how = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
        transformer.compiled = functools.cache(functools.partial(torch.compile, **how))
        torch._dynamo.reset()
        counters.clear()
    if options.get("collectives"):
        return collective_cases.cases()
    if options.get("buffers"):
        return pipeline_buffers(config)
    if "observe" in options:
        result = observe(config, RandomTokens(config.model.vocab_size), options["observe"])
        agreed = agree(result["losses"], result["grad_norms"])
        return {**result, "ranks_agree": agreed, "graphs": counters["stats"]["unique_graphs"]}
    lines: list[str] = []
    words = config.model.vocab_size
    logits = 256 if config.chunked_loss else trainer.parallel.loss.CHUNK_ELEMENTS
    buffers = mock.patch.object(Offload, "_buffer", autospec=True, side_effect=Offload._buffer)
    with (
        mock.patch("trainer.parallel.loss.CHUNK_ELEMENTS", logits),  # several chunks
        mock.patch("trainer.model.offload.LEAST_BYTES", 1),
        buffers as made,
    ):
        result = train(config, RandomTokens(words), lines.append, held_out=HeldOut(words))
    agreed = agree(result["losses"], result["grad_norms"])
    graphs = counters["stats"]["unique_graphs"]
    more = {"progress": lines, "graphs": graphs, "buffers": made.call_count}
    return {**result, **more, "ranks_agree": agreed}


def agree(*values: Any) -> bool:
    """Whether all ranks say the same; as text, for a NaN is unlike itself."""
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, values)
    return len({str(one) for one in seen}) == 1


def pipeline_buffers(config: TrainConfig) -> dict[str, Any]:
    """Most receive buffers that were held at once in a step, over all ranks, and those after."""
    training = Trainer(config, Device.of_this_rank("cpu"))
    parts = getattr(training.run.schedule, "_stages", None) or [training.run.schedule._stage]
    most = 0

    def held(backwards: bool) -> int:
        infos = [
            info
            for part in parts
            for table in (part.grad_recv_info if backwards else part.args_recv_info,)
            for entry in table.values()
            for info in entry
        ]
        return sum(info.buffer is not None for info in infos)

    def count(*_: Any) -> None:
        nonlocal most
        most = max(most, held(True) + held(False))

    for part in parts:
        part.submod.register_forward_hook(count)
    training.step(0, RandomTokens(config.model.vocab_size))
    figures = torch.tensor([most, held(True) + held(False)])
    dist.all_reduce(figures, dist.ReduceOp.MAX)
    return {"most": int(figures[0]), "after": int(figures[1])}


def say(answer: dict[str, Any]) -> None:
    """Write a line at once: ranks that fail together share the output."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def run_rank(jobs: list[dict[str, Any]], ranks: int, folder: str, rank: int) -> None:
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(max(1, ranks)))
    torch.set_num_threads(1)
    for number, job in enumerate(jobs):
        if ranks:
            # Anew for every job: a mesh's groups keep their threads until all are destroyed, and
            # a long sweep would end up with hundreds on every rank.
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(f"{folder}/store-{ranks}-{number}", ranks),
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=120),
            )
        try:
            answer = {"id": job["id"], "result": run_job(job)}
        except Exception:
            # The other ranks may wait for this one for ever: nothing after it can be trusted.
            say({"id": job["id"], "error": f"rank {rank}: {traceback.format_exc()}"})
            os._exit(1)
        if rank == 0:
            say(answer)
        if ranks:
            dist.barrier()
            dist.destroy_process_group()
            # A trained model's hooks refer to it and to its groups, in circles.
            gc.collect()


def run_in_forks(count: int, run: Callable[[int], None]) -> bool:
    """Run each rank in a fork, so that torch is imported once; whether all ended well.

    The first that does not ends the others, which may wait for it for ever.
    """
    gc.freeze()  # or each rank would look through all of torch's objects, again and again
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
            status = 1
            try:
                try:
                    run(rank)
                except BaseException:
                    traceback.print_exc()
                    raise
                status = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    well = True
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and well:
            well = False
            for other in children:
                os.kill(other, signal.SIGKILL)
    return well


def run_all(jobs: list[dict[str, Any]]) -> bool:
    """Run each job in forks; whether all ended well."""
    well = True
    with tempfile.TemporaryDirectory() as folder:
        for ranks in sorted({job["ranks"] for job in jobs}):
            mine = [job for job in jobs if job["ranks"] == ranks]
            run = functools.partial(run_rank, mine, ranks, folder)
            well &= run_in_forks(max(1, ranks), run)
    return well


def main() -> int:
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.clear()
        os.environ.update(request["environ"])
        say({"well": run_all(request["jobs"])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
