"""Times each matrix product's forms once, and caches the fastest for later trials.

The first step shows which products a rank computes. All ranks time them together after it, when no
activations are in memory; the slowest rank's times decide for all ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from foundation.files import FileError, read_json
from foundation.records import Record
from foundation.writing import write_atomically
from trainer.model.kernels import FORMS, Form, Product, TunedKernels, in_form
from trainer.runtime.cache import cpu_identity, user_cache
from trainer.runtime.device import Device

WORTH = 0.95  # another form is chosen if it takes at most this share of the default's time, twice
_SAMPLE_S = 0.001  # below it, clocks and launches weigh more than products
_PRODUCT_S = 0.06
_ROUNDS = range(5, 12)

Name = TypeVar("Name", bound=str)
Times = dict[Product, dict[Form, float]]


class Choice(Record):
    """The form of one product, its time with copies, and the time of the layer's own form."""

    form: Form
    default_s: float = Field(gt=0)
    form_s: float = Field(gt=0)


class Cache(BaseModel):
    """Tuned products of a kind of device, number format and library; a file in the user's cache."""

    model_config = ConfigDict(extra="forbid", strict=True)

    device: str
    dtype: str
    library: str
    products: dict[str, Choice] = {}

    @property
    def path(self) -> Path:
        identity = "\0".join((self.device, self.dtype, self.library))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return user_cache() / f"products-{digest}.json"

    def read(self) -> None:
        """Read the cache file; a file that is no such record counts as empty."""
        with contextlib.suppress(FileError, ValidationError):
            self.products |= Cache.model_validate(read_json(self.path)).products

    def write(self) -> None:
        """Merge into the cache file. If two jobs end at once, one's times may be lost."""
        mine = dict(self.products)
        self.read()
        self.products |= mine
        write_atomically(self.path, self.model_dump_json(indent=1), private=True)


@dataclass
class Tuning:
    """Chooses the forms of a job's products; every rank has one."""

    kernels: TunedKernels
    device: Device
    dtype: torch.dtype
    choices: dict[Product, Choice] = field(default_factory=dict)
    timed: set[Product] = field(default_factory=set)
    tuning_s: float = 0.0

    def after_step(self) -> float:
        """Choose the forms after the first step; called after every step. Returns its seconds."""
        if not self.kernels.counts:
            return 0.0
        self.kernels.counts = False
        begin_s = self.device.clock()
        cache = self._cache()
        asked = sorted({product for calls in _every(self.kernels.calls) for product in calls})
        self.timed = {product for product in asked if str(product) not in cache.products}
        if self.timed:
            found = self._measure(self.timed)
            cache.products |= {str(product): choice for product, choice in found.items()}
            if dist.get_rank() == 0:
                with contextlib.suppress(OSError):  # a full disk: the next job times again
                    cache.write()
        self.choices = {product: cache.products[str(product)] for product in asked}
        self.kernels.forms = {product: choice.form for product, choice in self.choices.items()}
        self.tuning_s = self.device.clock() - begin_s
        return self.tuning_s

    def report(self) -> dict[str, Any]:
        """For ``result.json``: this rank's products, and what their forms save in a step."""
        rows = [
            {
                "product": str(product),
                "times_per_step": calls,
                **self.choices[product].model_dump(),
                "from_cache": product not in self.timed,
            }
            for product, calls in sorted(self.kernels.calls.items())
        ]
        saved_s = sum(r["times_per_step"] * (r["default_s"] - r["form_s"]) for r in rows)
        return {"products": rows, "saved_s_per_step": saved_s, "tuning_s": self.tuning_s}

    def _cache(self) -> Cache:
        """The cache for all ranks' devices, as rank 0 reads it."""
        names = _every(_identity(self.device))
        library = f"torch {torch.__version__} {self.device.facts()['runtime'] or ''}".strip()
        cache = Cache(device="; ".join(sorted(set(names))), dtype=str(self.dtype), library=library)
        if dist.get_rank() == 0:
            cache.read()
        products = [cache.products]
        dist.broadcast_object_list(products, 0)
        cache.products = products[0]
        return cache

    def _measure(self, products: Iterable[Product]) -> dict[Product, Choice]:
        """Time all forms, then the fastest again, so that a lucky measurement does not win."""
        mine = sorted(set(products) & self.kernels.calls.keys())
        first = self._slowest(dict.fromkeys(mine, FORMS))
        rivals = {
            product: (product.form, fastest)
            for product, times in first.items()
            if product in mine and (fastest := min(times, key=times.__getitem__)) != product.form
        }
        second = self._slowest(rivals)
        return {
            product: choose(product.form, times, second.get(product, times))
            for product, times in first.items()
        }

    def _slowest(self, forms: Mapping[Product, Iterable[Form]]) -> Times:
        """Each product's times on the slowest rank."""
        dist.barrier()
        own = {product: self._time(product, tuple(which)) for product, which in forms.items()}
        merged: Times = {}
        for rank in _every(own):
            for product, times in rank.items():
                known = merged.setdefault(product, dict(times))
                merged[product] = {form: max(known[form], times[form]) for form in times}
        return merged

    def _time(self, product: Product, forms: tuple[Form, ...]) -> dict[Form, float]:
        left, right, bias = self._operands(product)
        calls = {form: partial(in_form, form, product, left, right, bias) for form in forms}
        return alternately(calls, self.device.clock)

    def _operands(self, product: Product) -> tuple[Tensor, Tensor, Tensor | None]:
        def stored(rows: int, columns: int, way: str) -> Tensor:
            sizes = (rows, columns) if way == "N" else (columns, rows)
            made = torch.randn(sizes, device=self.device.torch, dtype=self.dtype)
            return made if way == "N" else made.t()

        left = stored(product.rows, product.inner, product.form[0])
        right = stored(product.inner, product.columns, product.form[1])
        bias = torch.zeros(product.columns, device=self.device.torch, dtype=self.dtype)
        return left, right, bias if product.bias else None


def choose(default: Form, first: Mapping[Form, float], second: Mapping[Form, float]) -> Choice:
    """Form chosen by two measurements (s): the default unless another wins both clearly.

    ``first`` has times of all forms, ``second`` of the default and of the fastest of the first.
    """
    best = min(first, key=first.__getitem__)
    if all(times[best] <= WORTH * times[default] for times in (first, second)):
        return Choice(form=best, default_s=second[default], form_s=second[best])
    return Choice(form=default, default_s=second[default], form_s=second[default])


def alternately(
    calls: Mapping[Name, Callable[[], object]], clock: Callable[[], float]
) -> dict[Name, float]:
    """Median seconds of each call, in samples that take turns; the clock waits for the device."""

    def sample(call: Callable[[], object], times: int) -> float:
        begin_s = clock()
        for _ in range(times):
            call()
        return (clock() - begin_s) / times

    once_s = [min(sample(call, 1), sample(call, 1)) for call in calls.values()]  # warms up, too
    times = min(100, max(1, math.ceil(_SAMPLE_S / max(min(once_s), 1e-9))))
    fit = int(_PRODUCT_S / (times * sum(once_s)))
    rounds = min(max(fit, _ROUNDS.start), _ROUNDS.stop)
    samples = [[sample(call, times) for call in calls.values()] for _ in range(rounds)]
    return dict(zip(calls, map(statistics.median, zip(*samples, strict=True)), strict=True))


def _identity(device: Device) -> str:
    """The device that kernels are chosen for; on a CPU with the number of threads per rank."""
    if device.type != "cpu":
        return str(device.facts()["name"])
    digest = hashlib.sha256(cpu_identity().encode()).hexdigest()[:16]
    return f"cpu {digest}, {torch.get_num_threads()} threads"


def _every(own: Any) -> list[Any]:
    """One value per rank, gathered on every rank."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, own)
    return said
