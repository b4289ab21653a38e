"""Files are read with distrust: bounded in size and depth, never a pipe or a device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foundation.files import (
    FileError,
    MissingFileError,
    parse_json,
    read_bytes,
    read_end,
    read_text,
)
from foundation.messages import first_line, shown, without_secrets


def test_the_whole_of_a_small_file_and_the_end_of_a_large_one(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"abcdef")
    assert read_bytes(file, 6) == b"abcdef"
    assert read_end(file, 2) == b"ef"
    assert read_end(file, 100) == b"abcdef"
    with pytest.raises(FileError, match="larger than the 5 bytes"):
        read_bytes(file, 5)


def test_pipes_devices_and_directories_are_told_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="found a pipe"):
        read_bytes(pipe, 10)
    with pytest.raises(FileError, match="found a device"):
        read_end(Path("/dev/zero"), 10)
    with pytest.raises(FileError, match="found a directory"):
        read_text(tmp_path, 10)


def test_what_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="nothing: there is no such file"):
        read_text(tmp_path / "nothing", 10)
    with pytest.raises(FileError, match="not a file name"):
        read_text(Path("a\0b"), 10)
    with pytest.raises(FileError, match="cannot be read") as told:
        read_text(tmp_path / ("n" * 5000), 10)
    assert len(str(told.value)) < 400


def test_text_is_utf_8_without_nul(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xef\xbb\xbfna\xc3\xafve")
    assert read_text(file, 100) == "naïve"
    file.write_bytes(b"one\ntwo \xff")
    with pytest.raises(FileError, match=r"text:2: found byte 0xff at offset 8"):
        read_text(file, 100)
    file.write_bytes(b"one\ntwo\0")
    with pytest.raises(FileError, match=r"text:2: found a NUL"):
        read_text(file, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "r.json:1:2: not JSON"),
        ("[" * 700 + "]" * 700, "nested deeper than 64"),
        ("[" * 100_000, "nested deeper than 64"),
        ("9" * 5000, "not JSON: Exceeds the limit"),
        (b"\xff\xff", "not JSON"),
    ],
)
def test_json_is_bounded(text: str | bytes, message: str) -> None:
    with pytest.raises(FileError, match=message):
        parse_json(text, "r.json")
    assert parse_json('{"a": [1, {"b": null}]}', "r.json") == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:hush@host/db", "postgresql://***@host/db"),
        ("http://me:hu@sh@host:5000", "http://***@host:5000"),
        ("https://token@host/x", "https://***@host/x"),
        ("mysql+pymysql://h/d?ssl_password=hush&a=b", "mysql+pymysql://h/d?ssl_password=***&a=b"),
        ("sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db"),
        ("http://host:5000/x", "http://host:5000/x"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, told: str) -> None:
    assert shown(url) == without_secrets(url) == told
    assert first_line(OSError(f"no answer from {url}")) == f"no answer from {told}"
    assert first_line(OSError()) == "OSError"
