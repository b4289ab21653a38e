"""Actions of one rank, or of each, whose outcome every rank learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from trainer.checkpoint.integrity import CheckpointError
from trainer.plan.limits import ConfigError

T = TypeVar("T")


def on_first(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run on rank 0; every rank gets its result, or raises its error."""
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found = [action()]
        except (OSError, ConfigError, CheckpointError) as error:
            found = [error]
    dist.broadcast_object_list(found, group=group)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def on_each(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Run on every rank; each gets all results, or raises the first rank's error."""
    found: list[Any] = [None] * dist.get_world_size()
    try:
        own: Any = action()
    except (OSError, CheckpointError) as error:
        own = error
    dist.all_gather_object(found, own, group)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found
