"""What is said of a bad token file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.megatron_files import write_megatron
from trainer.data.indexed import read_index
from trainer.plan.limits import ConfigError


def _remove_bin(prefix: Path) -> None:
    Path(f"{prefix}.bin").unlink()


def _remove_idx(prefix: Path) -> None:
    Path(f"{prefix}.idx").unlink()


def _truncate_bin(prefix: Path) -> None:
    path = Path(f"{prefix}.bin")
    path.write_bytes(path.read_bytes()[:-1])


def _truncate_idx(prefix: Path) -> None:
    path = Path(f"{prefix}.idx")
    path.write_bytes(path.read_bytes()[:-1])


def _empty_idx(prefix: Path) -> None:
    Path(f"{prefix}.idx").write_bytes(b"")


def _foreign_idx(prefix: Path) -> None:
    Path(f"{prefix}.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(200))


def _future_idx(prefix: Path) -> None:
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    content[9] = 2
    path.write_bytes(content)


def _unknown_type(prefix: Path) -> None:
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    content[17] = 99
    path.write_bytes(content)


def _pipe(prefix: Path) -> None:
    Path(f"{prefix}.idx").unlink()
    os.mkfifo(f"{prefix}.idx")


def _endless(prefix: Path) -> None:
    """As many sequences as 64 bits can say."""
    path = Path(f"{prefix}.idx")
    content = path.read_bytes()
    path.write_bytes(content[:18] + b"\xff" * 16 + content[34:])


def _odd_bin(prefix: Path) -> None:
    """Half a token more, and an index that says so."""
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    content[38] += 1  # the offset of the only sequence
    path.write_bytes(content)
    with Path(f"{prefix}.bin").open("ab") as file:
        file.write(b"x")


def _folder(prefix: Path) -> None:
    Path(f"{prefix}.idx").unlink()
    Path(f"{prefix}.idx").mkdir()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_remove_bin, r"x\.bin: there is no such file"),
        (_remove_idx, r"x\.idx: there is no such file"),
        (_truncate_bin, r"x\.bin: 5 bytes, but x\.idx describes 6"),
        (_truncate_idx, r"x\.idx: truncated"),
        (_empty_idx, r"x\.idx: not the index"),
        (_foreign_idx, r"x\.idx: not the index"),
        (_future_idx, r"x\.idx: version 2"),
        (_unknown_type, r"x\.idx: .*type 99"),
        (_folder, r"x\.idx: found a directory"),
        (_pipe, r"x\.idx: found a pipe"),
        (_endless, r"x\.idx: truncated"),
        (_odd_bin, r"x\.bin: 7 bytes, but x\.idx describes 7"),
    ],
)
def test_a_bad_file_is_one_error_with_its_name_and_the_remedy(
    tmp_path: Path, damage: object, says: str
) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3]], "uint16")
    damage(tmp_path / "x")
    with pytest.raises(ConfigError, match=says + r".*meshtune prepare-data FILES --out .*x"):
        read_index(tmp_path / "x")
