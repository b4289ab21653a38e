"""Text files to a token file that the trainer reads: ``meshtune prepare-data``. Torch-free."""

from __future__ import annotations

import contextlib
import os
import stat
import sysconfig
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from foundation.files import explained
from foundation.messages import first_line
from trainer.data.indexed import DTYPES, HEADER, INT32, MAGIC, UINT16, VERSION
from trainer.plan.limits import ConfigError, optional

END_OF_DOCUMENT = 256
"""End-of-document token of the byte-level tokenizer; its other ids are the 256 bytes."""

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
_CHUNK_BYTES = 1 << 20
_MAX_SEQUENCE_TOKENS = 1 << 30  # the index counts a sequence's tokens in 32 bits


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the package ``tokenizers`` or ``transformers``."""

    encode: Callable[[str], list[int]]  # without tokens that mark a beginning or an end
    end: int  # ends a document
    vocab_size: int  # tokens are below it


def tokenizer_named(name: str) -> Tokenizer:
    """Load a ``tokenizer.json``, or a folder or hub name that ``transformers`` knows.

    Raises ConfigError if there is no such tokenizer, or the package that reads it is not installed.
    """
    if Path(name).is_file():
        return _of_file(name)
    module = optional("transformers", f"tokenizer {name!r}: no such file", ", or take `bytes`")
    try:
        found = module.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of many kinds: the network's, the hub's, the file's
        said = first_line(error)
        raise ConfigError(f"tokenizer {name!r}: transformers finds none: {said}") from error
    if found.eos_token_id is None:
        raise ConfigError(f"tokenizer {name!r} has no eos_token, which ends a document")
    return Tokenizer(
        lambda text: list(found.encode(text, add_special_tokens=False)),
        int(found.eos_token_id),
        len(found),
    )


def _of_file(name: str) -> Tokenizer:
    module = optional("tokenizers", f"tokenizer {name!r}")
    try:
        found = module.Tokenizer.from_file(name)
    except Exception as error:  # it raises Exception itself
        raise ConfigError(f"tokenizer {name!r}: not a tokenizer.json: {error}") from error
    ends = [end for text in _ENDS if (end := found.token_to_id(text)) is not None]
    if not ends:
        raise ConfigError(
            f"tokenizer {name!r} has none of {', '.join(_ENDS)} to end a document; name a folder "
            "for transformers, whose tokenizer_config.json says its eos_token"
        )
    return Tokenizer(
        lambda text: list(found.encode(text, add_special_tokens=False).ids),
        int(ends[0]),
        int(found.get_vocab_size()),
    )


def prepare_data(files: Sequence[Path], out: Path, tokenizer: str = "bytes") -> int:
    """Tokenize files into ``OUT.bin`` and ``OUT.idx``, one document per file; returns the tokens.

    Files are streamed, empty ones left out; output gets its names only when complete.

    Args:
        files: files, or folders (recursively, sorted, without hidden files).
        out: prefix of the two files; its folder is made if need be.
        tokenizer: ``bytes``: byte b is token b, and 256 ends a document: vocabulary 257, rounded up
            to a multiple of ``tp``. Else see ``tokenizer_named``; UTF-8 files are read whole.

    Raises ConfigError if there is nothing to read, the tokenizer is unknown, or ``out`` cannot be
    written.
    """
    by = None if tokenizer == "bytes" else tokenizer_named(tokenizer)
    code = UINT16 if by is None or by.vocab_size <= 1 << 16 else INT32
    if out.is_dir() or out.name in ("", ".."):
        raise ConfigError(f"{out}: a folder; name the two files' prefix, such as {out / 'text'}")
    for path in files:
        if not path.is_dir():
            _check_regular(path)
    sequences = array("i")
    documents = array("q", [0])
    with _replacing(Path(f"{out}.bin")) as data:
        for path in _walk(files):
            lengths = _append(path, data, by, code)
            if lengths:
                sequences.extend(lengths)
                documents.append(len(sequences))
        if not sequences:
            raise ConfigError("the files to prepare hold no text: " + ", ".join(map(str, files)))
    # The index comes last: without it, or with an older one, the data is refused, never misread.
    with _replacing(Path(f"{out}.idx")) as index:
        _write_index(index, code, np.asarray(sequences), np.asarray(documents))
    return int(np.sum(sequences, dtype=np.int64))


def python_source_files(max_bytes: int = 4_000_000) -> list[Path]:
    """Sorted sources of Python's standard library without tests, ``max_bytes`` together."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    files, total = [], 0
    for path in sorted(root.rglob("*.py")):
        if skipped.isdisjoint(path.relative_to(root).parts):
            size = path.stat().st_size
            if total + size <= max_bytes:
                files.append(path)
                total += size
    return files


def _walk(files: Sequence[Path]) -> Iterator[Path]:
    for path in files:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                paths = (Path(folder, n) for n in sorted(names) if not n.startswith("."))
                yield from (path for path in paths if path.is_file())  # and no pipe or device
        else:
            yield path


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name readable files or folders") from error


def _check_regular(path: Path) -> None:
    """Raise ConfigError for a device or a pipe, which may have no end, or a missing file."""
    with _reading(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: a device or a pipe; name readable files or folders")


def _append(path: Path, data: BinaryIO, by: Tokenizer | None, code: int) -> list[int]:
    """Write one document; returns the tokens of each sequence it is cut into, none if empty."""
    tokens = 0
    for piece in _pieces(path, by):
        data.write(np.asarray(piece, DTYPES[code]).tobytes())
        tokens += len(piece)
    if tokens == 0:
        return []
    end = END_OF_DOCUMENT if by is None else by.end
    data.write(np.asarray(end, DTYPES[code]).tobytes())
    whole, rest = divmod(tokens + 1, _MAX_SEQUENCE_TOKENS)
    return [_MAX_SEQUENCE_TOKENS] * whole + ([rest] if rest else [])


def _pieces(path: Path, by: Tokenizer | None) -> Iterator[np.ndarray | list[int]]:
    """A document's tokens in order: bytes as they are read, text all at once."""
    with _reading(path):
        if by is None:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield np.frombuffer(chunk, np.uint8)
            return
        try:
            yield by.encode(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path}: not text in UTF-8: {error.reason} at byte {error.start}"
            ) from error


def _write_index(index: BinaryIO, code: int, sequences: np.ndarray, documents: np.ndarray) -> None:
    offsets = np.zeros(len(sequences), "<i8")
    np.cumsum(sequences[:-1], dtype=np.int64, out=offsets[1:])
    index.write(HEADER.pack(MAGIC, VERSION, code, len(sequences), len(documents)))
    index.write(sequences.astype("<i4").tobytes())
    index.write((DTYPES[code].itemsize * offsets).tobytes())
    index.write(documents.astype("<i8").tobytes())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name only when it is complete and on disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise ConfigError(f"cannot be written: {explained(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
