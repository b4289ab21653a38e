"""Whether a folder is the one whose trials a journal tells of: moved it is, copied it is not."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis.run.folder import Identity


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_folder_keeps_its_identity_where_it_is_and_wherever_it_is_moved(
    run: Path, tmp_path: Path
) -> None:
    first = Identity.of(run, None)
    assert Identity.of(run, first) == first
    moved = run.rename(tmp_path / "moved")
    after = Identity.of(moved, first)
    assert (after.id, after.path) == (first.id, str(moved))
    (tmp_path / "link").symlink_to(moved)
    assert Identity.of(tmp_path / "link", after) == after


def test_a_copy_has_another_identity_even_where_its_original_was_moved_away(
    run: Path, tmp_path: Path
) -> None:
    first = Identity.of(run, None)
    copied = Path(shutil.copytree(run, tmp_path / "copy"))
    assert Identity.of(copied, first).id != first.id
    run.rename(tmp_path / "original")
    copied.rename(run)  # where the original was
    assert Identity.of(run, first).id != first.id
    assert Identity.of(tmp_path / "original", first).id == first.id


def test_a_number_that_two_file_systems_share_is_no_proof_while_the_original_is_in_its_place(
    run: Path, tmp_path: Path
) -> None:
    first = Identity.of(run, None)
    elsewhere = tmp_path / "snapshot"
    elsewhere.mkdir()
    assert first.is_elsewhere(elsewhere)
    assert not first.is_elsewhere(run)
    run.rmdir()
    assert not first.is_elsewhere(elsewhere)


def test_the_journal_can_hold_it(run: Path) -> None:
    first = Identity.of(run, None)
    assert Identity.from_record(asdict(first)) == first
    assert Identity.from_record({}) is None
