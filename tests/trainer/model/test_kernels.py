"""Products in the form that is fastest train like those in torch's own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from trainer.loop import train
from trainer.model.kernels import FORMS, Product, TunedKernels, in_form
from trainer.model.tuning import Cache, Choice, Tuning, alternately, choose
from trainer.plan.config import TrainConfig

MODEL = {"num_layers": 1, "hidden_size": 32, "num_heads": 4, "vocab_size": 64, "seq_length": 16}
STEPS, EXACT = 3, 1e-5
OTHER = {"NN": "TN", "NT": "NN", "TN": "NT"}


def job(name: str, ranks: int, **values: Any) -> dict[str, Any]:
    config = {
        "model": MODEL,
        "data": "unused",
        "precision": "fp32",
        "warmup_steps": 0,
        "measured_steps": STEPS,
        "device": "cpu",
        "mbs": 2,
        "gas": 2,
        **values,
    }
    return {"id": name, "ranks": ranks, "config": config}


LIGHT = [job("tensor", 2, tp=2, sequence_parallel=True), job("grid", 2, gy=2)]
HEAVY = [
    job("whole", 4, zero_stage=3, recompute="selective"),
    job("pipeline", 4, pp=2, gas=4, model={**MODEL, "num_layers": 2}),
    job("tensor, its operators", 4, tp=2, recompute="selective"),
    job("grid, all gathered", 4, gx=2, gz=2, recompute="full"),
    job("whole, compiled", 1, compile=True, recompute="selective"),
    job("grid, compiled", 2, gy=2, compile=True),
]


def tuned(job: dict[str, Any], name: str) -> dict[str, Any]:
    return {**job, "id": f"{job['id']} {name}", "config": {**job["config"], "tune_kernels": True}}


def force(cache: Path) -> None:
    """Say of every product on record that another form than the layer's is the fastest.

    Fewer ranks have more threads each, for which there is a file of its own.
    """
    for path in cache.glob("meshtune/products-*.json"):
        record = json.loads(path.read_text())
        for product, choice in record["products"].items():
            choice.update(form=OTHER[product[:2]], default_s=2e-3, form_s=1e-3)
        path.write_text(json.dumps(record))


def three_ways(jobs: list[dict[str, Any]], run_ranks: Any, cache: Path) -> dict[str, Any]:
    """Each job as it is, then tuned, then with every product in another form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        results = run_ranks([*jobs, *(tuned(job, "timed") for job in jobs)])
        force(cache)
        return {**results, **run_ranks([tuned(job, "forced") for job in jobs])}


@pytest.fixture(scope="module")
def light(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    yield three_ways(LIGHT, run_ranks, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def heavy(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    yield three_ways(HEAVY, run_ranks, tmp_path_factory.mktemp("cache"))


def trains_alike(results: dict[str, Any], job: dict[str, Any]) -> None:
    plain = results[job["id"]]
    assert plain["kernels"] is None
    timed, forced = (results[f"{job['id']} {how}"] for how in ("timed", "forced"))
    for result in (timed, forced):
        assert result["losses"] == pytest.approx(plain["losses"], rel=EXACT)
        assert result["ranks_agree"]
    assert timed["losses"][0] == plain["losses"][0]  # the first step is as ever
    rows = forced["kernels"]["products"]
    assert {row["form"] for row in rows} == {*FORMS}
    assert all(row["form"] == OTHER[row["product"][:2]] for row in rows)
    assert all(row["from_cache"] for row in rows)
    calls = sum(row["times_per_step"] for row in rows)
    assert forced["kernels"]["saved_s_per_step"] == pytest.approx(calls * 1e-3)
    assert {row["product"] for row in timed["kernels"]["products"]} == {
        row["product"] for row in rows
    }


@pytest.mark.parametrize("job", LIGHT, ids=lambda job: job["id"])
def test_split_layers_train_alike_whatever_the_form(
    light: dict[str, Any], job: dict[str, Any]
) -> None:
    trains_alike(light, job)


@pytest.mark.heavy
@pytest.mark.parametrize("job", HEAVY, ids=lambda job: job["id"])
def test_every_layout_trains_alike_whatever_the_form(
    heavy: dict[str, Any], job: dict[str, Any]
) -> None:
    trains_alike(heavy, job)


def test_a_step_counts_each_product_of_a_layer_and_of_the_logits(light: dict[str, Any]) -> None:
    rows = light["tensor timed"]["kernels"]["products"]
    counted = {row["product"]: row["times_per_step"] for row in rows}
    tokens = 2 * MODEL["seq_length"]
    assert counted[f"NT {tokens}x32x48 + bias"] == 2  # query, key, value: once a micro-batch
    assert counted[f"NT {tokens}x32x32"] == 2  # half of the vocabulary
    assert sum(counted.values()) == 2 * 5 * 3
    assert len({row["from_cache"] for row in rows}) == 1 and not rows[0]["from_cache"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_three_products_of_a_layer_are_the_same_in_every_form(form: str, bias: bool) -> None:
    x, weight, grad = torch.randn(3, 2, 8), torch.randn(5, 8), torch.randn(3, 2, 5)
    add = torch.randn(5) if bias else None
    kernels = TunedKernels()
    computed = {
        lambda: kernels.outputs(x, weight, add): F.linear(x, weight, add),
        lambda: kernels.input_gradient(grad, weight): grad @ weight,
        lambda: kernels.weight_gradient(grad, x, weight): torch.einsum("sbo,sbi->oi", grad, x),
    }
    for compute in computed:
        compute()
    assert {product.form for product in kernels.calls} == {*FORMS}
    kernels.forms = dict.fromkeys(kernels.calls, form)
    for compute, expected in computed.items():
        torch.testing.assert_close(compute(), expected)


def test_a_form_is_how_the_operands_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []

    def watch(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        stored.append("".join("N" if one.is_contiguous() else "T" for one in (left, right)))
        return left.mm(right)

    product = Product("NT", 4, 3, 5)
    left, right = torch.randn(4, 3), torch.randn(5, 3).t()
    monkeypatch.setattr(torch.Tensor, "__matmul__", watch)
    for form in FORMS:
        in_form(form, product, left, right)
    assert tuple(stored) == FORMS


@pytest.mark.parametrize(
    ("first", "second", "form"),
    [
        ({"NN": 0.5, "NT": 1.0, "TN": 2.0}, {"NN": 0.6, "NT": 1.0}, "NN"),
        ({"NN": 0.5, "NT": 1.0, "TN": 2.0}, {"NN": 0.97, "NT": 1.0}, "NT"),  # luck
        ({"NN": 0.97, "NT": 1.0, "TN": 2.0}, {"NN": 0.97, "NT": 1.0}, "NT"),  # too little
        ({"NN": 2.0, "NT": 1.0, "TN": 2.0}, {"NN": 2.0, "NT": 1.0, "TN": 2.0}, "NT"),
    ],
)
def test_another_form_is_taken_only_where_it_is_clearly_faster_twice(
    first: dict[str, float], second: dict[str, float], form: str
) -> None:
    chosen = choose("NT", first, second)
    assert chosen == Choice(form=form, default_s=second["NT"], form_s=second[form])


def test_calls_take_turns_and_the_median_counts() -> None:
    now_s = 0.0
    order: list[str] = []

    def call(name: str, takes_s: float) -> None:
        nonlocal now_s
        order.append(name)
        now_s += takes_s * (50 if order.count(name) == 4 else 1)  # one of them is disturbed

    times = alternately(
        {"slow": lambda: call("slow", 0.25), "fast": lambda: call("fast", 0.125)}, lambda: now_s
    )
    assert times == {"slow": 0.25, "fast": 0.125}
    assert order[4:] == ["slow", "fast"] * 5


def test_what_is_cached_is_of_one_device_number_format_and_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = {"device": "a", "dtype": "b", "library": "c"}
    choice = Choice(form="NN", default_s=2.0, form_s=1.0)
    Cache(**told, products={"NT 1x2x3": choice}).write()
    Cache(**told, products={"TN 1x2x3": choice}).write()  # another job: adds to it
    same = Cache(**told)
    same.read()
    assert same.products == {"NT 1x2x3": choice, "TN 1x2x3": choice}
    for key in told:
        other = Cache(**{**told, key: "another"})
        other.read()
        assert other.products == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"products": {"NT 1x2x3": {"form": "XX"}}}'])
def test_a_broken_cache_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = Cache(device="a", dtype="b", library="c")
    cache.path.write_text(text)
    cache.read()
    assert cache.products == {}
    cache.products["NT 1x2x3"] = Choice(form="NN", default_s=2.0, form_s=1.0)
    cache.write()
    again = Cache(device="a", dtype="b", library="c")
    again.read()
    assert again == cache


def test_tuning_is_not_in_the_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned_s, clock = 0.0, time.perf_counter

    def after_step(_: Tuning) -> float:
        nonlocal tuned_s
        tuned_s += 1000.0
        return 1000.0

    class Zeros:
        def samples(
            self, first: int, count: int, *, seq_length: int, seed: int
        ) -> tuple[torch.Tensor, torch.Tensor]:
            tokens = torch.zeros(count, seq_length, dtype=torch.int64)
            return tokens, tokens

        def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> torch.Tensor:
            raise NotImplementedError

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + tuned_s)
    monkeypatch.setattr(Tuning, "after_step", after_step)
    monkeypatch.setattr(Tuning, "report", lambda _: {})
    config = {**job("one", 1)["config"], "tune_kernels": True, "measured_steps": 2}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        result = train(TrainConfig.parse(config), Zeros(), lambda _: None)
    finally:
        dist.destroy_process_group()
    assert 0 < result["step_times_s"][-1] < 1000.0
