"""Words around a trainer in a launch script: options of sbatch and launchers, and its program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from foundation.documents import read_document

WORDS: dict[str, Any] = read_document(Path(__file__).with_name("launch_words.yaml")).root.plain()
_SHORT: dict[str, str] = WORDS["short"]
_WITHOUT_VALUE: dict[str, str] = WORDS["short flags"]
NAMING = ("-n", "--name", "-p", "--prefix")  # options before the name of conda's environment
_AGENT = re.compile(
    rf"(?:.*/bin/)?(?:{'|'.join(WORDS['agents'] + WORDS['launchers'])})|.*deepy\.py"
)
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


def in_long(launcher: Sequence[str]) -> list[str]:
    """A launcher's words with srun's options by their long names: -N 4 is --nodes=4."""
    if launcher[:1] != ["srun"]:
        return list(launcher)
    options, rest = options_and_rest(launcher[1:])
    return options + rest


def program(words: list[str]) -> tuple[str, bool, list[str], list[str]]:
    """A command's script or module, whether it is a module, its arguments, the launcher's words."""
    if words and words[0] in WORDS["prints"]:
        return "", False, words, []
    known = WORDS["commands"] if words and words[0] not in WORDS["no trainers"] else {}
    for index, word in enumerate(words):
        if word.endswith(".py") and Path(word).name not in WORDS["launchers"]:
            return word, False, words[index + 1 :], words[: index + 1]
        if index and words[index - 1] in ("-m", "--module") and word not in WORDS["launchers"]:
            return word, True, words[index + 1 :], words[: index + 1]
        if word in known and index + 1 < len(words):
            at = index + 1
            if word == "tune" and "--config" in words:  # run --nproc_per_node 8 RECIPE --config ...
                at = words.index("--config") - 1
            entry, module = known[word]
            end = words.index("--", at) if "--" in words[at:] else len(words)
            told = [*words[: at + 1], *words[end + 1 :]]  # after -- are axolotl's launcher's
            return entry.format(words[at]), bool(module), words[at + 1 : end], told
    return "", False, words, []


def number(words: Sequence[str], *options: str) -> int:
    """The whole number that an option of the launcher states; 0 if it is missing."""
    for word, following in pairwise([*words, ""]):
        name, sign, value = word.partition("=")
        if name[:2] == "--" and name[2:].replace("-", "_") in options:
            text = value if sign else following
            return int(text) if text.isdecimal() and len(text) < 7 else 0
    return 0


def by_agents(launcher: Sequence[str]) -> bool:
    """Whether a launcher's task is a whole node, on which torchrun or the like starts the ranks."""
    words = options_and_rest(launcher[1:])[1] if launcher[:1] == ["srun"] else launcher
    return any(_AGENT.fullmatch(w) for before, w in pairwise(["", *words]) if before not in NAMING)


def ranks_of(launcher: Sequence[str], nodes: int, tasks: int) -> int:
    """Ranks that a launcher starts in all, 0 if unknown; torchrun and DeepSpeed state a node's."""
    if by_agents(launcher):
        total = number(launcher, "num_processes")
        of_a_node = number(launcher, "nproc_per_node", "num_gpus")
    else:
        total = number(launcher, "ntasks")
        of_a_node = number(launcher, "ntasks_per_node") or tasks
    return total or of_a_node * (nodes or 1)
