"""Text files to token files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from support.megatron_files import write_megatron
from trainer.data.dataset import TokenDataset
from trainer.data.indexed import read_index
from trainer.data.prepare import END_OF_DOCUMENT, prepare_data, python_source_files
from trainer.plan.limits import ConfigError


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
    assert index.num_tokens == written
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
    assert not list((tmp_path / "out").glob("*"))


def test_a_failed_preparation_keeps_the_earlier_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    prepare_data([tmp_path / "a"], tmp_path / "x")
    with pytest.raises(ConfigError, match="missing"):
        prepare_data([tmp_path / "a", tmp_path / "missing"], tmp_path / "x")
    assert read_index(tmp_path / "x").num_tokens == 5


def test_an_output_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    with pytest.raises(ConfigError, match=r"cannot be written: .*a/x\.bin: File exists"):
        prepare_data([tmp_path / "a"], tmp_path / "a" / "x")


def test_an_unknown_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    """With transformers or without."""
    with pytest.raises(ConfigError, match="tokenizer 'no/such': ") as refused:
        prepare_data([], tmp_path / "x", tokenizer="no/such")
    assert "transformers" in str(refused.value)


def test_without_its_package_a_tokenizer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    if importlib.util.find_spec("tokenizers"):
        pytest.skip("tokenizers is installed")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        prepare_data([], tmp_path / "x", tokenizer=str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("words", [100, 70_000])
def test_text_is_written_in_the_tokens_of_a_tokenizer_json(tmp_path: Path, words: int) -> None:
    """Of 70,000 words, tokens take four bytes."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    known = {"<unk>": 0, "<|endoftext|>": 1} | {f"w{n}": n for n in range(2, words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(f"w2 w3 w{words - 1}")
    (tmp_path / "b.txt").write_text("w5 other")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert prepare_data(files, tmp_path / "x", str(tmp_path / "tokenizer.json")) == 7
    data = TokenDataset(tmp_path / "x", words)
    tokens, targets = data.samples(0, 1, seq_length=6, seed=0)
    assert tokens.tolist() == [[2, 3, words - 1, 1, 5, 0]]
    assert targets.tolist() == [[3, words - 1, 1, 5, 0, 1]]
    assert data.starts(0, 1, seq_length=6, seed=0).tolist() == [[0, 0, 0, 0, 4, 4, 4]]
    (tmp_path / "c.txt").write_bytes(b"w2 \xff")
    with pytest.raises(ConfigError, match=r"c\.txt: not text in UTF-8: .* at byte 3"):
        prepare_data([tmp_path / "c.txt"], tmp_path / "y", str(tmp_path / "tokenizer.json"))


def test_the_standard_library_makes_a_data_set(tmp_path: Path) -> None:
    files = python_source_files(max_bytes=300_000)
    assert files == sorted(files)
    written = prepare_data(files, tmp_path / "x")
    assert 200_000 < written <= 300_000 + len(files)
    data = TokenDataset(tmp_path / "x", END_OF_DOCUMENT + 1)
    tokens, _ = data.samples(0, 4, seq_length=128, seed=0)
    assert tokens.max() <= END_OF_DOCUMENT
