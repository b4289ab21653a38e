"""Options of a trainer that the cost model knows nothing of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.language.trainer_schema import TrainerSpec

_OFF = (None, False, 0, "", "none", "None", "false", "no", "auto")


def offloading(spec: TrainerSpec) -> list[str]:
    """Options, paths and variables that offload states to the host or to disks."""
    found = [word for word in spec.words if word.startswith("-") and "offload" in word]
    for file in spec.files.values():
        for content in (file.content or {}, file.set, *(case.set for case in file.cases)):
            found += _switched_on(content)
    found += [name for name, v in spec.env.items() if "OFFLOAD" in name and v not in _OFF]
    return sorted({word.partition("=")[0] for word in found})


def _switched_on(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted paths of the offloading keys that are on."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if "offload" in path:
            device = value.get("device") if isinstance(value, dict) else value
            if device not in _OFF and device != "{offload_activations}":  # that is modelled
                yield path
        elif isinstance(value, dict):
            yield from _switched_on(value, f"{path}.")
