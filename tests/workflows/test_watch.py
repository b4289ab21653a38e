"""``meshtune watch``, as a browser sees it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest

from analysis.run.folder import RunFolder
from search_spaces import load_space
from support.run_book import RunBook
from support.toy_space import SPACE
from support.waiting import wait_for
from workflows.cli.watch import watch
from workflows.watch import PageError, Pages, serving


@pytest.fixture
def book(tmp_path: Path) -> Iterator[RunBook]:
    book = RunBook(tmp_path / "a & run")
    (tmp_path / "own.yaml").write_text(SPACE)
    RunFolder(book.directory).create(load_space(tmp_path / "own.yaml"))
    book.run_one(1, {"tp": 1}, "ok", 2.5)
    yield book
    book.close()


@pytest.fixture
def address(book: RunBook) -> Iterator[str]:
    """Of a watch that runs."""
    command = [sys.executable, "-m", "workflows.cli.main", "watch", str(book.directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(250) == 130


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=250) as answer:
        return str(answer.read().decode())


def status(address: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=250) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_page_follows_the_journal_and_nothing_of_the_run_is_touched(
    book: RunBook, address: str
) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/report/", address)
    trials = book.directory / "trials"
    (trials / "0001/stderr.log").unlink(missing_ok=True)
    (trials / "0001/stderr.log").symlink_to(book.directory / "space.yaml")
    (trials / "0009").symlink_to(trials / "0001")
    before = sorted(p for p in book.directory.rglob("*"))
    wait_for(lambda: "Best configuration" in get(address), "the first page")
    page, version = get(address), get(address + "version")
    assert "meshtune-watch-" not in page  # the copy that it was made of
    assert f"from {escape(str(book.directory))}/journal.jsonl" in page
    assert f'!== "{version}"' in page and "connect-src 'self'" in page
    root = address.split("/report/")[0]
    assert get(root + "/trials/0001/stdout.log") == "step 1\n"
    book.propose(2, {"tp": 2})
    book.start(2)
    wait_for(lambda: get(address + "version") != version, "a page of the longer journal")
    assert sorted(p for p in book.directory.rglob("*")) == before
    # Who does not know the token, means another name, or wants more than to read gets nothing.
    for wrong in (
        address.replace("/report/", "x/report/"),
        root.rpartition("/")[0] + "/",
        root + "/trials/0001/trial.json",
        root + "/trials/0001/stderr.log",
        root + "/trials/0009/stdout.log",
        root + "/trials/0001/../../journal.jsonl",
        root + "/space.yaml",
    ):
        assert status(wrong) == 404, wrong
    assert status(address, Host="evil.example:80") == 404
    assert status(address, "POST") == 501 and status(address, "PUT") == 501


def test_a_page_is_served_with_its_own_version(tmp_path: Path) -> None:
    made = iter([("<body>one</body>", "1"), ("<body>two</body>", "2")])

    class Changing(Pages):
        """A newer page comes whenever one is read."""

        latest = property(lambda _: next(made), lambda *_: None)

    page = Changing(tmp_path, lambda copy: copy).served()
    assert "one" in page and '!== "1"' in page


def test_a_problem_that_lasts_is_told_once(
    book: RunBook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = iter([PageError("a"), False, PageError("a"), True, PageError("a"), PageError("b")])

    def refresh(_: Pages) -> bool:
        found = next(seen, KeyboardInterrupt())
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(Pages, "refresh", refresh)
    monkeypatch.setattr("workflows.watch.LOOKED_S", 0)
    with pytest.raises(KeyboardInterrupt):
        watch(Namespace(run=book.directory, port=None))
    assert capsys.readouterr().err == "meshtune: a\nmeshtune: a\nmeshtune: b\n"


def test_whatever_keeps_a_page_from_being_made_is_told_of_the_run_itself(book: RunBook) -> None:
    def write(copy: Path) -> Path:
        raise ZeroDivisionError(f"{copy}/journal.jsonl")

    with pytest.raises(PageError, match=f"^{book.directory}/journal.jsonl$"):
        Pages(book.directory, write).refresh()


def test_who_asks_nothing_is_not_waited_for(book: RunBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.watch.ANSWERED_S", 0.2)
    with serving(Pages(book.directory, lambda copy: copy)) as address:
        host, port = address.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            assert connection.recv(1) == b""


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workflows.cli.main", "watch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=os.environ)
    assert done.returncode == 2 and done.stdout == ""
