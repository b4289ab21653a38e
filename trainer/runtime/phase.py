"""This rank's current phase, so that a failure such as out of memory can name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal[
    "build", "forward", "backward", "optimizer", "communication", "validation", "checkpoint"
]


@dataclass
class Phase:
    """The current phase of this rank; ``train`` writes it, failure reports read it."""

    name: Name = "build"


phase = Phase()
