"""YAML is read within bounds, whatever file it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundation.documents import parse_document
from foundation.files import FileError
from slurm.srun.site import Site, SiteError


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: &a [x]\nb: [*a" + ", *a" * 50_000 + "]", "more than 50,000 values"),
        (
            "\n".join(f"a{i}: &a{i} {'[' * 9}*a{i - 1}{']' * 9}" for i in range(1, 99)),
            "f:1:18: alias '*a0' names no",
        ),
        (
            "a0: &a0 1\n"
            + "\n".join(f"a{i}: &a{i} {'[' * 9}*a{i - 1}{']' * 9}" for i in range(1, 99)),
            "f:3:18: nested deeper than 16 levels",
        ),
        (f"a: !{'x' * 5000} b", "f:1:4: found the YAML tag"),
        (f"{'k' * 900}: 1\n{'k' * 900}: 2\n", "f:2:1: key 'kkkk"),
        (f"*{'a' * 5000}", "names no finished anchor"),
        ('"\\0": 1', "f:1:1: found the character '\\x00'"),
    ],
)
def test_what_is_beyond_the_bounds_is_told_in_one_short_line(text: str, what: str) -> None:
    with pytest.raises(FileError) as told:
        parse_document(text, "f")
    assert what in str(told.value)
    assert len(str(told.value)) < 300


def test_an_alias_bomb_in_a_site_profile_is_told_in_a_line(tmp_path: Path) -> None:
    bomb = "".join(
        f"{a}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    path = tmp_path / "site.yaml"
    path.write_text(f"source: &a x\n{bomb}")
    with pytest.raises(SiteError, match="more than 50,000 values") as told:
        Site.load(str(path))
    assert len(str(told.value)) < 500
