from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from slurm.minicluster import cluster as mini, config as folders
from slurm.minicluster.config import MiniclusterConfig
from slurm.minicluster.daemons import machine_lock


def config(directory: Path, **changes: Any) -> MiniclusterConfig:
    fields = {
        "directory": str(directory), "hostname": "host", "user": "root", "node_prefix": "n",
        "num_nodes": 3, "gpus_per_node": 2, "mem_per_node_mib": 500, "base_port": 17000,
        "cgroup": None, "own_name": True, "clients_on_loopback": True,
    }  # fmt: skip
    return MiniclusterConfig(**{**fields, **changes})


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def test_the_lock_and_the_default_folder_are_in_the_users_runtime_folder(runtime: Path) -> None:
    with machine_lock():
        assert [path.name for path in (runtime / "meshtune").iterdir()] == ["minicluster.lock"]
    assert (runtime / "meshtune").stat().st_mode & 0o777 == 0o700
    assert folders.default_directory() == runtime / "meshtune/minicluster"


def test_a_link_is_not_followed_where_the_lock_should_be(runtime: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    (runtime / "meshtune").mkdir(0o700)
    (runtime / "meshtune/minicluster.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"), machine_lock():
        pass
    assert victim.read_text() == "years of work"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.symlink_to(path.parent), "is a link"),
        (lambda path: path.write_text(""), "File exists"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), r"can be written by .*mode 777"),
    ],
    ids=["link", "file", "open"],
)
def test_a_folder_that_somebody_else_may_have_made_is_refused(
    make: Callable[[Path], object], problem: str, runtime: Path
) -> None:
    make(runtime / "meshtune")
    with pytest.raises(folders.MiniclusterError, match=problem):
        folders.runtime_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("whose", ["", "meshtune"])
def test_a_folder_of_another_user_is_not_used(whose: str, runtime: Path) -> None:
    folder = runtime / whose
    folder.mkdir(0o700, exist_ok=True)
    os.chown(folder, 65534, 65534)
    if whose:
        with pytest.raises(folders.MiniclusterError, match="belongs to user 65534"):
            folders.runtime_folder()
    else:  # as after `su`: the variable names that of the user who called it
        assert folders.runtime_folder() == Path(f"/tmp/meshtune-{os.geteuid()}")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folders.write_config(config(tmp_path))
    assert folders.read_config(tmp_path) == config(tmp_path)
    assert folders.read_config(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[" * 10_000, "Invalid JSON"),
        ("[]", "object"),
        ({"num_nodes": 10**12}, "num_nodes: Input should be less than or equal to 99"),
        ({"num_nodes": "3"}, "num_nodes: .*found '3'"),
        ({"cgroup": "v3"}, "cgroup: "),
        ({"directory": "/"}, "directory: found /, "),
        (b"\xff", "byte 0xff"),
        (b" " * (1 << 20), "larger than"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(
    content: str | bytes | dict[str, Any], found: str, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.json"
    if isinstance(content, dict):
        content = json.dumps(asdict(config(tmp_path)) | content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for action in (mini.status, mini.down):
        with pytest.raises(folders.MiniclusterError, match=found) as caught:
            action(tmp_path)
        assert str(caught.value).startswith(str(file))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 800


def test_a_clusters_file_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    folders.write_config(config(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(folders.MiniclusterError, match="can be written by other users"):
        mini.down(tmp_path)


@pytest.mark.parametrize("name", ["a b", "x=y", "a#b", "l" * 100])
def test_a_path_that_slurms_files_cannot_name_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "missing", lambda: None)
    with pytest.raises(folders.MiniclusterError, match=r"Slurm's files|too long"):
        mini.up(tmp_path / name)
    assert not (tmp_path / name).exists()
