"""The software environment that a batch job sends to its nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from analysis.run.fold import read_run
from slurm.minicluster.cluster import Minicluster
from slurm.srun import batch, shell
from slurm.srun.site import Site, SiteError
from support.batch_scripts import script
from support.waiting import wait_for

SPACE = """\
version: 1
cluster: {name: mini, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [python, TRAINER]}
parameters: {mbs: 1}
objective: {maximize: speed}
trial: {timeout: 60s}
budget: {trials: 1}
finalists: false
"""


def with_environment(archive: Path, folder: object) -> Site:
    profile = archive.with_name("site.yaml")
    told = {"source": "a test", "environment": {"archive": str(archive), "folder": str(folder)}}
    profile.write_text(yaml.safe_dump(told))
    return Site.load(str(profile))


def test_the_sites_environment_is_sent_before_the_search_which_runs_from_it(tmp_path: Path) -> None:
    text = script(
        tmp_path, site=with_environment(tmp_path / "an archive", "/local/e"), meshtune=None
    )
    sent = text.index(f"sbcast --force '{tmp_path}/an archive' /local/e.meshtune.tar ||")
    assert (
        sent
        < text.index("export PATH=/local/e/bin:")
        < text.index("/local/e/bin/python -P -m meshtune search tiny_cpu ")
    )
    assert str(batch.UNPACK) not in text  # nodes need not see where it is submitted from
    assert "sbcast" not in script(tmp_path)


@pytest.mark.parametrize("folder", ["env", "/", "/local/"])
def test_an_environment_has_a_folder_of_its_own(tmp_path: Path, folder: str) -> None:
    with pytest.raises(SiteError, match=r"site\.yaml.*folder"):
        with_environment(tmp_path / "e.tar", folder)


def test_an_archive_is_not_where_nodes_get_it(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="is where nodes get it: name another folder"):
        with_environment(tmp_path / "e.meshtune.tar", tmp_path / "e")


@pytest.mark.parametrize("suffix", ["", "gz"])
def test_an_archive_is_looked_into_before_it_is_submitted(tmp_path: Path, suffix: str) -> None:
    archive, made = tmp_path / "env.tar", tmp_path / "made"
    environment = with_environment(archive, "/local/e").environment
    assert environment is not None
    with pytest.raises(SiteError, match=r"env\.tar: there is no such file; make it with"):
        environment.check()
    os.mkfifo(archive)
    with pytest.raises(SiteError, match=r"env\.tar: found a pipe, accepted a file; make it with"):
        environment.check()
    archive.unlink()
    archive.write_text("no tar")
    with pytest.raises(SiteError, match=r"env\.tar: cannot be read: tar: "):
        environment.check()
    (made / "bin").mkdir(parents=True)
    (made / "bin/python").touch()

    def pack(*what: str) -> None:
        subprocess.run(["tar", f"-c{suffix and 'z'}f", archive, "-C", *what], check=True)

    pack(str(tmp_path), "made")
    with pytest.raises(SiteError, match=r"no bin/python at its top, only made/bin/python; make"):
        environment.check()
    for what in (".", "bin"):
        pack(str(made), what)
        environment.check()


def packed(folder: Path) -> Path:
    """An environment with this one's packages, in a tar; where it was made it is no more."""
    made, archive = folder / "made", folder / "env.tar"
    venv.create(made, with_pip=False)
    packages = made / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (packages / "all.pth").write_text("\n".join(path for path in sys.path if path))
    subprocess.run(["tar", "-cf", archive, "-C", made, "."], check=True)
    shutil.rmtree(made)
    return archive


@pytest.mark.slurm
def test_a_job_searches_from_an_environment_that_it_sent_to_its_nodes(
    tmp_path: Path, minicluster: Minicluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two, of which the second has no room for it: it is left out."""
    space, trainer, run = (tmp_path / name for name in ("space.yaml", "train.py", "run"))
    folder = tmp_path / "node" / "env"
    folder.parent.mkdir()
    run.mkdir()
    space.write_text(SPACE.replace("TRAINER", str(trainer)))
    trainer.write_text("import sys; print(sys.prefix); print('MESHTUNE_RESULT {\"speed\": 1}')")
    # Nodes of a minicluster share their disk.
    full = 'echo "Welcome to $SLURMD_NODENAME"\n'  # as a TaskProlog does
    full += '[ "$SLURM_NODEID" = 0 ] || { echo "$SLURMD_NODENAME: no room" >&2; exit 1; }\n'
    unpack = tmp_path / "unpack.sh"
    unpack.write_text(full + batch.UNPACK.read_text())
    monkeypatch.setattr(batch, "UNPACK", unpack)
    site = with_environment(packed(tmp_path), folder)
    job = batch.BatchJob.submit(
        script(run, space=str(space), site=site, nodes=2, meshtune=None), run
    )
    try:
        wait_for(lambda: job not in shell.run(["squeue", "-h", "-o", "%A"]), "its end")
    finally:
        shell.run(["scancel", job])
    log = (run / f"slurm-{job}.log").read_text()
    (trial,) = read_run(run).trials.values()
    assert trial.kind == "ok", log
    assert str(folder) in (run / "trials/0001/stdout.log").read_text().splitlines()
    (said,) = re.findall(r"^(\S+): no room$", log, re.MULTILINE)
    assert f"searched without {said}, as the lines above say\n" in log
    assert said not in trial.attempts[-1].nodes


def test_a_node_replaces_an_environment_of_an_earlier_job_and_nothing_else(tmp_path: Path) -> None:
    archive, folder = packed(tmp_path), tmp_path / "on the node"
    size = archive.stat().st_size

    def unpack() -> subprocess.CompletedProcess[str]:
        shutil.copy(archive, f"{folder}.meshtune.tar")
        told = {"SLURMD_NODENAME": "n7", "PATH": os.environ["PATH"]}
        command = ["/bin/sh", str(batch.UNPACK), str(folder), str(size)]
        return subprocess.run(command, env=told, capture_output=True, text=True)

    assert unpack().stdout == "meshtune-ready:n7\n"
    (folder / "old").touch()
    assert unpack().returncode == 0
    assert (folder / "bin/python").exists() and not (folder / "old").exists()
    (folder / "bin/python").unlink()  # by a replacement that was interrupted
    assert unpack().returncode == 0
    mark = folder.with_name(f"{folder.name}.meshtune")
    mark.unlink()
    refused = unpack()
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"meshtune: n7: {folder} is there already: name another one")
    assert refused.stdout == ""
    assert (folder / "bin/python").exists()
    shutil.rmtree(folder)
    archive.write_text("no tar")
    assert "did not arrive whole: the folder above must be there" in unpack().stderr
    size = archive.stat().st_size
    assert "the archive cannot be unpacked: see the lines above" in unpack().stderr
    assert {*tmp_path.iterdir()} == {archive, folder, mark}
    own = tmp_path / "of a user"
    own.write_text("precious")
    for link in (mark, folder):
        shutil.rmtree(folder, ignore_errors=True)
        mark.unlink(missing_ok=True)
        link.symlink_to(own)
        assert f"{link} is a link: remove it" in unpack().stderr
        assert own.read_text() == "precious" and link.is_symlink()
        link.unlink()
