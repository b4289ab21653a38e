"""Files that are no space are refused by name; what is one in spite of its looks is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import SpaceError, load_space
from support.refused_spaces import message

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = [
    ("empty", b"", ["empty file"]),
    ("only_comments", b"# nothing\n\n", ["empty file"]),
    ("scalar", b"hello\n", ["found 'hello'", "a mapping"]),
    ("null", b"~\n", ["found nothing", "a mapping"]),
    ("list_at_top", b"- a\n- b\n", ["a mapping"]),
    ("binary", bytes(range(256)), ["UTF-8"]),
    ("latin_1", "name: caf\xe9\n".encode("latin-1"), [":1: ", "0xe9", "UTF-8"]),
    ("utf_16", "version: 1\n".encode("utf-16"), ["UTF-8"]),
    ("nul", b"version: 1\nname: \x001\n", [":2: found a NUL"]),
    ("elf", b"\x7fELF\x02\x01\x01\x00", ["found a NUL"]),
    ("ten_megabytes", b"# " + b"x" * 10_000_000, ["larger than the 1,000,000 bytes"]),
    ("alias_bomb", BOMB.encode(), ["more than 50,000 values", "aliases"]),
    ("many_nodes", b"a: [" + b"1," * 60_000 + b"]", ["more than 50,000 values"]),
    ("brackets", b"[" * 900_000, ["nested deeper"]),
    ("block_nesting", b"".join(b" " * i + b"a:\n" for i in range(300)), ["nested deeper"]),
    ("json_garbage", b'{"version": 1, "model":', ["not YAML"]),
    ("only_a_tab", b"\t", ["YAML"]),
    ("huge_int", b"version: " + b"9" * 5000, ["version", "accepted 1"]),
    ("surrogates", b'name: "\\ud800"\nversion: 1\n', [":1:"]),
    ("escaped_nul", b'name: "a\\0"\nversion: 1\n', [":1:7: found the character '\\x00'"]),
]


@pytest.mark.parametrize(
    ("content", "fragments"), [f[1:] for f in FILES], ids=[f[0] for f in FILES]
)
def test_a_file_that_is_no_space_is_refused(
    tmp_path: Path, content: bytes, fragments: list[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    text = message(path)
    assert text.startswith(str(path))
    for fragment in fragments:
        assert fragment in text, text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "directory" in message(tmp_path)
    assert "no such file" in message(tmp_path / "missing.yaml")
    assert "device" in message("/dev/null")
    assert "cannot be read" in message(f"{tmp_path}/{'x' * 300}.yaml")
    (tmp_path / "file").write_text("")
    assert "Not a directory" in message(tmp_path / "file" / "x.yaml")
    assert "file name" in message("a\0b")
    assert "directory" in message("")


def test_a_shipped_name_with_a_typo_is_corrected() -> None:
    text = message("gpt_175b_fronteir")
    assert "neither a file nor a shipped space" in text
    assert "did you mean 'gpt_175b_frontier'" in text


def test_a_byte_order_mark_is_read_over(tmp_path: Path, good: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())
    assert load_space(path).model is not None


def test_an_alias_may_repeat_a_value(tmp_path: Path, good: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(good.replace("tp: [1, 2, 4]", "tp: &sizes [1, 2]\n  zero_stage: *sizes"))
    assert load_space(path).parameters["zero_stage"].values == (1, 2)


def test_a_run_in_place_of_a_space_names_the_space_in_it(tmp_path: Path, good: str) -> None:
    assert message(tmp_path) == f"{tmp_path}: found a directory, accepted a file"
    (tmp_path / "space.yaml").write_text(good)
    assert message(tmp_path).endswith(f"this run's space is {tmp_path / 'space.yaml'}")


def test_what_a_run_has_frozen_is_read_though_its_limit_is_lower_now() -> None:
    cluster = {"name": "c", "gpus_per_node": 8, "memory_gib": 81559, "peak_bf16_tflops": 989}
    trainer = {"command": ["train", "{size}"]}
    text = {"version": 1, "cluster": cluster, "trainer": trainer, "parameters": {"size": [1, 2]}}
    space = {**text, "objective": {"minimize": "loss"}}
    read = load_space(space, frozen=True).cluster
    assert read is not None and read.memory_gib == 81559
    with pytest.raises(SpaceError, match=r"found 81559, accepted 8192\.0 or less"):
        load_space(space)
