"""Options of sbatch and srun, as people write them in a launch script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name",
    "L": "licenses", "M": "clusters", "N": "nodes", "S": "core-spec", "c": "cpus-per-task",
    "d": "dependency", "e": "error", "i": "input", "m": "distribution", "n": "ntasks",
    "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_WITHOUT_VALUE = {
    "H": "hold", "K": "kill-on-bad-exit", "O": "overcommit", "Q": "quiet", "l": "label",
    "s": "oversubscribe", "u": "unbuffered", "v": "verbose",
}  # fmt: skip
_FLAG = re.compile(
    rf"--(?:{'|'.join(_WITHOUT_VALUE.values())}|exact|exclusive|no-\S+|overlap|parsable|requeue"
    r"|container-(?:entrypoint|mount-home|readonly|remap-root|writable)|spread-job|contiguous)"
)


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
