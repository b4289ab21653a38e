"""``meshtune watch``, as a browser sees it."""

from __future__ import annotations

import json
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
from concurrent.futures import ThreadPoolExecutor
from html import escape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from analysis.run.folder import RunFolder
from search_spaces import load_space
from support.run_book import RunBook
from support.toy_space import SPACE
from support.waiting import wait_for
from workflows.cli.report import watch
from workflows.watch import PageError, Pages, Site, serving


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


def live(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(address + "live"))
    return found


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
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/a%20%26%20run/report/", address)
    trials = book.directory / "trials"
    (trials / "0001/stderr.log").unlink(missing_ok=True)
    (trials / "0001/stderr.log").symlink_to(book.directory / "space.yaml")
    (trials / "0009").symlink_to(trials / "0001")
    before = sorted(p for p in book.directory.rglob("*"))
    wait_for(lambda: "Best configuration" in get(address), "the first page")
    page, version = get(address), live(address)["version"]
    assert "meshtune-watch-" not in page  # the copy that it was made of
    assert f"from {escape(str(book.directory))}/journal.jsonl" in page
    assert f'<html data-version="{version}"' in page and "connect-src 'self'" in page
    root = address.split("/report/")[0]
    assert get(root + "/trials/0001/stdout.log") == "step 1\n"
    book.propose(2, {"tp": 2})
    book.start(2)
    wait_for(lambda: live(address)["version"] != version, "a page of the longer journal")
    (running,) = live(address)["running"]
    assert (running["trial"], running["nodes"], running["config"]) == (2, "n000", "tp=2")
    assert "1 of 9 ended, 1 running on 1 node" in live(address)["facts"]
    assert sorted(p for p in book.directory.rglob("*")) == before
    # Who does not know the token, means another name, or wants more than to read gets nothing.
    for wrong in (
        address.replace("/a%20", "x/a%20"),
        root.replace("a%20", "b%20") + "/report/",
        root.rpartition("/")[0].rpartition("/")[0] + "/",
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
    made = iter([("<html lang=en>one", "1"), ("<html lang=en>two", "2")])

    class Changing(Pages):
        """A newer page comes whenever one is read."""

        latest = property(lambda _: next(made), lambda *_: None)

    found = Changing(tmp_path, lambda copy: copy).answer("report/")
    assert found is not None and found[1] == b'<html data-version="1" lang=en>one'


def site(*folders: Path) -> Site:
    """Of runs whose pages are not made."""
    return Site(folders, lambda copy, home: copy)


def test_a_head_is_answered_without_the_page(book: RunBook) -> None:
    with serving(site(book.directory)) as address:
        host = address.split("/")[2]
        connection = HTTPConnection(host, timeout=250)
        connection.request("HEAD", address.split(host)[1])
        answer = connection.getresponse()
        assert answer.status == 200 and int(answer.headers["Content-Length"]) > 50
        assert answer.read() == b""


def test_what_a_link_leads_to_is_not_served(book: RunBook, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with serving(site(book.directory)) as address:
        log = book.directory / "trials" / "0001" / "stdout.log"
        url = address.replace("report/", "trials/0001/stdout.log")
        assert get(url) == "step 1\n"
        log.unlink()
        log.symlink_to(tmp_path / "secret")
        assert status(url) == 404
        (tmp_path / "stdout.log").write_text("secret")
        (book.directory / "trials" / "0002").symlink_to(tmp_path)
        assert status(url.replace("0001", "0002")) == 404
        book.propose(2, {"tp": 2})
        book.start(2)
        assert live(address)["running"][0]["log"] == []


def test_several_runs_are_set_side_by_side_with_what_differs(book: RunBook, tmp_path: Path) -> None:
    other = RunBook(tmp_path / "other" / "a & run")
    text = SPACE.replace("[1, 2, 4]", "[1, 2]")
    assert text != SPACE
    (tmp_path / "other.yaml").write_text(text)
    RunFolder(other.directory).create(load_space(tmp_path / "other.yaml"))
    other.run_one(1, {"tp": 2}, "ok", 5.0)
    other.close()
    with serving(site(book.directory, other.directory)) as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", address)
        page = get(address)
        assert 'href="a%20%26%20run/report/"' in page and 'href="a%20%26%20run-2/report/"' in page
        cells = re.findall(r"<td>(.*?)</td>", page.split(">relative to the first<")[1])
        assert cells[:2] == ["1", "2"]
        keys = page.split('id="spaces"')[1].split("</table>")[0]
        assert "[1, 2, 4]" in keys and keys.count("<tr>") == 3  # its head, name, one key
        alone = get(address + "?run=a%20%26%20run-2")
        assert "as there is one run" in alone and ">relative to the first<" in alone
        assert status(address + "a%20%26%20run-2/report/") == 200
        assert status(address + "a%20%26%20run-3/report/") == 404


def test_three_hundred_readers_are_all_answered(book: RunBook) -> None:
    with serving(site(book.directory)) as address, ThreadPoolExecutor(300) as readers:
        found = list(readers.map(lambda _: live(address)["version"], range(300)))
    assert found == ["0"] * 300


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
        watch(Namespace(runs=[book.directory], port=None))
    assert capsys.readouterr().err == "meshtune: a\nmeshtune: a\nmeshtune: b\n"


def test_whatever_keeps_a_page_from_being_made_is_told_of_the_run_itself(book: RunBook) -> None:
    def write(copy: Path) -> Path:
        raise ZeroDivisionError(f"{copy}/journal.jsonl")

    with pytest.raises(PageError, match=f"^{book.directory}/journal.jsonl$"):
        Pages(book.directory, write).refresh()


def test_who_asks_nothing_is_not_waited_for(book: RunBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.watch.ANSWERED_S", 0.2)
    with serving(site(book.directory)) as address:
        host, port = address.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=250) as connection:
            assert connection.recv(1) == b""


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workflows.cli.main", "watch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=os.environ)
    assert done.returncode == 2 and done.stdout == ""
