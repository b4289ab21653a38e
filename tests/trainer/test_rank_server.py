"""The process that runs the tests' ranks is started again where it ended by itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from support import rank_server

ONE_REQUEST = """
import json, os, sys
json.loads(sys.stdin.readline())
print(json.dumps({"id": "job", "result": {"pid": os.getpid()}}))
print(json.dumps({"well": True}), flush=True)
"""


def test_a_server_that_died_between_requests_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(ONE_REQUEST)
    monkeypatch.setattr(rank_server, "WORKER", worker)
    with closing(rank_server.RankServer()) as server:
        pids = []
        for _ in range(2):
            pids.append(server.run([{"id": "job"}])["job"]["pid"])
            assert server._process is not None
            server._process.wait(250)
    assert len({*pids}) == 2
