"""Token files: the format, the samples, and what is said of a bad file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import ConfigError
from trainer.data.dataset import TokenDataset, shuffled
from trainer.data.indexed import read_index
from trainer.data.prepare import BYTE_VOCAB_SIZE, END_OF_DOCUMENT, prepare_data, python_source_files

# Megatron-LM's own table of number types.
MEGATRON_CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}


def write_megatron(prefix: Path, documents: list[list[int]], dtype: str) -> None:
    """The two files, byte by byte as Megatron-LM's IndexedDatasetBuilder writes them."""
    arrays = [np.array(tokens, dtype) for tokens in documents]
    sizes = [len(array) for array in arrays]
    offsets = [sum(sizes[:i]) * np.dtype(dtype).itemsize for i in range(len(sizes))]
    Path(f"{prefix}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)
        + struct.pack("<B", MEGATRON_CODES[dtype])
        + struct.pack("<Q", len(sizes))
        + struct.pack("<Q", len(sizes) + 1)
        + np.array(sizes, np.int32).tobytes()
        + np.array(offsets, np.int64).tobytes()
        + np.arange(len(sizes) + 1, dtype=np.int64).tobytes()
    )


@pytest.fixture
def counting(tmp_path: Path) -> TokenDataset:
    """Tokens 0, 1, 2, ... 4000, so that a token says where in the stream it stands."""
    write_megatron(tmp_path / "n", [list(range(1500)), list(range(1500, 4001))], "int32")
    return TokenDataset(tmp_path / "n", vocab_size=4001)


def global_batch(
    data: TokenDataset, step: int, mbs: int, gas: int, dp: int, seed: int = 1, seq_length: int = 10
) -> torch.Tensor:
    parts = [
        data.batch(step, micro, replica, mbs=mbs, gas=gas, dp=dp, seq_length=seq_length, seed=seed)[
            0
        ]
        for replica in range(dp)
        for micro in range(gas)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", MEGATRON_CODES)
def test_every_number_type_of_megatron_is_read(tmp_path: Path, dtype: str) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3], [4, 5, 6, 7, 8, 9]], dtype)
    data = TokenDataset(tmp_path / "x", vocab_size=10)
    tokens, targets = data.batch(0, 0, 0, mbs=1, gas=1, dp=1, seq_length=8, seed=0)
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert targets.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9]]


def test_targets_are_the_tokens_one_later(counting: TokenDataset) -> None:
    tokens, targets = counting.batch(3, 1, 1, mbs=4, gas=2, dp=2, seq_length=10, seed=7)
    assert tokens.shape == targets.shape == (4, 10)
    assert torch.equal(targets, tokens + 1)


@pytest.mark.parametrize(
    ("mbs", "gas", "dp"),
    [(24, 1, 1), (1, 24, 1), (1, 1, 24), (2, 3, 4), (4, 2, 3), (3, 8, 1), (6, 1, 4)],
)
def test_the_global_batch_does_not_depend_on_its_split(
    counting: TokenDataset, mbs: int, gas: int, dp: int
) -> None:
    for step in (0, 5, 40):
        expected = global_batch(counting, step, mbs=12, gas=2, dp=1)
        assert torch.equal(global_batch(counting, step, mbs, gas, dp), expected)


def test_an_epoch_visits_every_sample_once_in_an_order_of_its_own(counting: TokenDataset) -> None:
    epochs = [global_batch(counting, epoch, 400, 1, 1)[:, 0].tolist() for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 4000, 10))
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_seed_decides_the_order(counting: TokenDataset) -> None:
    first = global_batch(counting, 0, 8, 1, 1, seed=1)
    assert torch.equal(first, global_batch(counting, 0, 8, 1, 1, seed=1))
    assert not torch.equal(first, global_batch(counting, 0, 8, 1, 1, seed=2))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**63), st.integers(0, 1000))
def test_a_shuffle_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(shuffled(i, size, seed, epoch) for i in range(size)) == list(range(size))


def test_a_shuffle_leaves_no_visible_order() -> None:
    """Rank correlation of 4000 positions with their images; its deviation is 1/63 by chance."""
    images = np.array([shuffled(i, 4000, 5, 0) for i in range(4000)])
    assert abs(np.corrcoef(np.arange(4000), images)[0, 1]) < 0.08
    steps = np.abs(np.diff(images))
    assert abs(steps.mean() / (4000 / 3) - 1) < 0.08


def test_a_token_outside_the_vocabulary_is_an_input_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 300, 4]], "int32")
    data = TokenDataset(tmp_path / "x", vocab_size=257)
    with pytest.raises(ConfigError, match=r"x\.bin: token 300 .* vocabulary of 257"):
        data.batch(0, 0, 0, mbs=1, gas=1, dp=1, seq_length=3, seed=0)


def test_data_shorter_than_one_sample_is_an_input_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3, 4]], "int32")
    data = TokenDataset(tmp_path / "x", vocab_size=10)
    with pytest.raises(ConfigError, match="fewer than one sample of seq_length 4"):
        data.batch(0, 0, 0, mbs=1, gas=1, dp=1, seq_length=4, seed=0)


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


def _folder(prefix: Path) -> None:
    Path(f"{prefix}.idx").unlink()
    Path(f"{prefix}.idx").mkdir()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_remove_bin, r"x\.bin: No such file"),
        (_remove_idx, r"x\.idx: No such file"),
        (_truncate_bin, r"x\.bin: 5 bytes, but x\.idx describes 6"),
        (_truncate_idx, r"x\.idx: truncated"),
        (_empty_idx, r"x\.idx: not the index"),
        (_foreign_idx, r"x\.idx: not the index"),
        (_future_idx, r"x\.idx: version 2"),
        (_unknown_type, r"x\.idx: .*type 99"),
        (_folder, r"x\.idx: Is a directory"),
    ],
)
def test_a_bad_file_is_one_error_with_its_name_and_the_remedy(
    tmp_path: Path, damage: object, says: str
) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3]], "uint16")
    damage(tmp_path / "x")
    with pytest.raises(ConfigError, match=says + r".*meshtune prepare-data FILES --out .*x"):
        read_index(tmp_path / "x")


def test_prepared_text_reads_back_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "text" / "sub").mkdir(parents=True)
    (tmp_path / "text" / "b.txt").write_bytes(bytes(range(256)))
    (tmp_path / "text" / "a.txt").write_text("héllo")
    (tmp_path / "text" / "empty.txt").touch()
    (tmp_path / "text" / ".hidden").write_text("no")
    (tmp_path / "text" / "sub" / "c.txt").write_text("c")
    written = prepare_data([tmp_path / "text"], tmp_path / "out" / "x.v1")
    expected = [
        *"héllo".encode(),
        END_OF_DOCUMENT,
        *range(256),
        END_OF_DOCUMENT,
        *b"c",
        END_OF_DOCUMENT,
    ]
    index = read_index(tmp_path / "out" / "x.v1")
    assert np.fromfile(tmp_path / "out" / "x.v1.bin", "<u2").tolist() == expected
    assert (index.num_tokens, index.num_documents, index.num_sequences) == (written, 3, 3)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["x.v1.bin", "x.v1.idx"]


def test_the_prepared_index_is_what_megatron_would_write(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "three")):
        (tmp_path / name).write_text(text)
    prepare_data([tmp_path / "a", tmp_path / "b"], tmp_path / "ours")
    write_megatron(tmp_path / "theirs", [[*b"one", 256], [*b"three", 256]], "uint16")
    for kind in ("bin", "idx"):
        ours, theirs = (tmp_path / f"{who}.{kind}" for who in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("files", [["missing"], ["empty"], []])
def test_preparing_nothing_is_an_input_error_and_leaves_no_file(
    tmp_path: Path, files: list[str]
) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError):
        prepare_data([tmp_path / name for name in files], tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_preparation_keeps_the_earlier_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    prepare_data([tmp_path / "a"], tmp_path / "x")
    with pytest.raises(ConfigError, match="missing"):
        prepare_data([tmp_path / "a", tmp_path / "missing"], tmp_path / "x")
    assert read_index(tmp_path / "x").num_tokens == 5


def test_an_output_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    with pytest.raises(ConfigError, match=r"a/x\.bin: cannot be written"):
        prepare_data([tmp_path / "a"], tmp_path / "a" / "x")


def test_an_unknown_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'gpt2' is not known"):
        prepare_data([], tmp_path / "x", tokenizer="gpt2")


def test_the_standard_library_makes_a_data_set(tmp_path: Path) -> None:
    files = python_source_files(max_bytes=300_000)
    assert files == sorted(files)
    written = prepare_data(files, tmp_path / "x")
    assert 200_000 < written <= 300_000 + len(files)
    data = TokenDataset(tmp_path / "x", BYTE_VOCAB_SIZE)
    tokens, _ = data.batch(0, 0, 0, mbs=4, gas=1, dp=1, seq_length=128, seed=0)
    assert tokens.max() < BYTE_VOCAB_SIZE
