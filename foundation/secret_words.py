"""Secret values among the words of a command, and of what it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# Variables and options whose values must not be in a space, a run or a report, which other people
# read; a short value or a path, such as that of EOS_TOKEN, is no secret, nor is one that only a
# shell knows. They are matched with NAME=VALUE, NAME with _ for other characters, or the word
# before the value.
_NAMED = (
    r"\w*(?:API_?KEY|WANDB_KEY|ACCESS_KEY(?:_ID)?|(?:GH|GITHUB|GITLAB)_PAT)=(?![$`]).{16,}",
    r"\w*KEY=[0-9a-f]{40}",
    r"(?:(?:WANDB|HF)_LOGIN|_*RELOGIN|LOGIN)=(?![$`]).{16,}",  # a word: wandb login KEY
    r"\w*=(?:hf_[a-z]{30,}|gh[a-z]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,})",
    r"(?!(?:\w{0,40}_)?(?:eos|bos|pad|unk|mask|sep|cls|image|special|stop)\w{0,40}token=)"
    r"\w*TOKEN=(?![$`/<\[]).{16,}",
    r"\w*(?:SECRET|PASSWORD|PASSWD)=(?![$`]|\d+\Z).{4,}",
    # a URL with a password, or a token
    r"\w+=[\w+.-]{0,40}://(?:[^/\s$@:]*:[^/\s$@]+|[^/\s$@]{16,})@.*",
    r"BEARER=(?![$`]).{8,}",
    r"_+(?:u|user|proxy_user)=[^/:\s$`]+:(?![$`]|\d+\Z).{4,}",  # curl -u NAME:PASSWORD
)
# Anywhere in a value, by their own look: of Hugging Face, GitHub, GitLab, OpenAI; in JSON.
_LOOKS = (
    r"(?<![\w-])(?:hf_[a-z0-9]{20,}|gh[a-z]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,})",
    r"(?<![\w-])sk-(?:\w{1,20}-){0,3}\w{20,}",
    r'"[\w-]{0,40}(?:api[_-]?key|secret|password|(?:auth|access|hf|hub|api)[_-]?token)"'
    r'\s{0,9}:\s{0,9}"[^"$`</\[]{8,}"',
    r'"token"\s{0,9}:\s{0,9}"[^"$`</\[]{16,}"',
)
_SECRET = re.compile("|".join(_NAMED), re.IGNORECASE | re.DOTALL)
_WITHIN = re.compile("|".join(_LOOKS), re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a whole value of a variable, or an option such as ``--hf-token``, is a secret."""
    plain = re.sub(r"[^a-zA-Z0-9]+", "_", name).rstrip("_")
    return bool(_SECRET.fullmatch(f"{plain}={value}"))


def has_secret(name: str, value: str) -> bool:
    """Whether the value of a variable or an option is a secret, or has one among its words."""
    words = [word.strip("\"'(){},:;") for word in value.split()]
    among = len(words) > 1 and disclosed(words) != words
    return among or bool(_WITHIN.search(value)) or is_secret(name, value)


def disclosed(words: Sequence[str]) -> list[str]:
    """Words of a command with ``***`` for those that are secrets, or have one within."""
    told = []
    for before, word in pairwise(["", *words]):
        name, _, value = word.partition("=")
        if value and has_secret(name, value):
            word = f"{name}=***"
        named = "" if word[:1] == "-" else before
        told.append("***" if has_secret(named, word) else word)
    return told
