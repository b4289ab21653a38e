"""The checks of ``meshtune verify-gpu``, cheapest first, in four parts. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foundation.documents import read_document

_MODELS: dict[str, dict[str, Any]] = read_document(
    Path(__file__).with_name("models.yaml")
).root.plain()
TINY, SIZES = _MODELS.pop("tiny"), _MODELS  # models that the checks train


@dataclass(frozen=True)
class Check:
    """One check in a process: the function ``kind`` of ``trainer.verify.checks``, or a search."""

    name: str
    part: int
    kind: str
    limit_s: float
    remedy: str
    settings: dict[str, Any] = field(default_factory=dict)
    gpus: int = 1
    model: dict[str, Any] = field(default_factory=dict)  # of layouts on GPUs, where it is not TINY
    tolerance: float = 1e-4  # of the losses of layouts


def planned(gpus: int) -> Iterator[Check]:
    """All checks for a node with so many GPUs."""
    for entry in read_document(Path(__file__).with_name("checks.yaml")).root.plain():
        each: dict[str, Any] = entry.pop("each", {})
        if each:
            name, settings = entry.pop("name"), entry.pop("settings", {})
            for variant, own in each.items():
                yield Check(f"{name}, {variant}", **entry, settings={**settings, **own})
        elif entry["kind"] != "layouts":
            yield Check(**entry)
        elif gpus > 1 and gpus % entry.get("settings", {}).get("tp", 1) == 0:
            yield Check(**{**entry, "name": f"{entry['name']} on {gpus} GPUs", "gpus": gpus})
