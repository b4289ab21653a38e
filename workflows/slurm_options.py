"""Options of sbatch and srun, as people write them in a launch script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foundation.documents import read_document

WORDS: dict[str, Any] = read_document(Path(__file__).with_name("launch_words.yaml")).root.plain()
_SHORT: dict[str, str] = WORDS["short"]
_WITHOUT_VALUE: dict[str, str] = WORDS["short flags"]
_FLAG = re.compile(rf"--(?:{'|'.join([*_WITHOUT_VALUE.values(), *WORDS['flags']])})")


def batch_options(script: str) -> list[str]:
    """Options of sbatch in a script's comments."""
    options: list[str] = []
    for line in re.findall(r"^#SBATCH\s+(.*)$", script, re.MULTILINE):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        options += options_and_rest(words)[0]
    return options


def options_and_rest(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options at the beginning, each as ``--name`` or ``--name=value``, and what follows."""
    options: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "--":
        word = left.pop(0)
        if word[:2] != "--":
            name, value = word[1:2], word[2:].removeprefix("=")
            if name in _WITHOUT_VALUE:
                options.append(f"--{_WITHOUT_VALUE[name]}")
                continue
            word = f"--{_SHORT.get(name, name)}" + (f"={value}" if value else "")
        if "=" not in word and not _FLAG.fullmatch(word) and left and left[0][:1] != "-":
            word += f"={left.pop(0)}"
        options.append(word)
    return options, left
