"""Secret values among the words of a command, and of what it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# Variables and options whose values must not be in a space, a run or a report, which other people
# read; a short value or a path, such as that of EOS_TOKEN, is no secret, nor is one that only a
# shell knows. Every option's value is one if it looks like a token of Hugging Face, GitHub, GitLab.
_SECRET = re.compile(
    "|".join(
        (
            r"\w*(?:API_?KEY|WANDB_KEY|LOGIN|ACCESS_KEY(?:_ID)?|(?:GH|GITHUB|GITLAB)_PAT)"
            r"=(?![$`]).{16,}",
            r"\w*=(?:hf_[a-z]{30,}|gh[a-z]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,})",
            r"\w*TOKEN=(?![$`/<]).{16,}",
            r"\w*(?:SECRET|PASSWORD|PASSWD)=(?![$`]).+",
            # A URL with a password, or a token.
            r"\w+=[\w+.-]{0,40}://(?:[^/\s$@:]*:[^/\s$@]+|[^/\s$@]{16,})@.*",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable, or an option such as ``--hf-token``, has a secret value."""
    return bool(_SECRET.fullmatch(f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}={value}"))


def disclosed(words: Sequence[str]) -> list[str]:
    """Words of a command with ``***`` for the values of its secret options."""
    told = []
    for before, word in pairwise(["", *words]):
        name, _, value = word.partition("=")
        word = f"{name}=***" if is_secret(name, value) else word
        told.append("***" if word[:1] != "-" and is_secret(before, word) else word)
    return told
