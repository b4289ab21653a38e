"""Other modules of the packages' names: on PYTHONPATH, in the working directory, installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshtune.own_packages import PACKAGES, ROOT
from search_spaces.shipped import SHIPPED

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, whose modules have the names of meshtune's packages."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "trainer.py").write_text("def speed(mbs):\n    return 10.0 * mbs\n")
    for name in ("workflows", "slurm", "search_spaces"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('the project is {name}')\n")
    (folder / "analysis").mkdir()
    (folder / "analysis" / "__init__.py").write_text("raise SystemExit('the project is analysis')")
    return folder


@pytest.fixture
def meshtune(project: Path) -> Run:
    """``meshtune`` as in the user's shell: in the project, which is on PYTHONPATH as well."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
        environ.pop("SLURM_JOB_ID", None)
        return subprocess.run(
            [sys.executable, "-m", "meshtune", *arguments],
            cwd=project,
            env=environ,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


def test_the_users_modules_do_not_hide_the_built_in_trainer(project: Path, meshtune: Run) -> None:
    """Neither in the driver, nor in the fork server and the ranks."""
    text = (SHIPPED / "tiny_cpu.yaml").read_text()
    space = project / "tiny.yaml"  # roomy: its trial is a success
    space.write_text(re.sub(r"device_memory_bytes: \d+", "device_memory_bytes: 1000000000", text))
    done = meshtune("search", str(space), "--trials", "1", "--launcher", "local", "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"winner: trial 1, [\d.,]+ ± [\d.,]+ tokens/s, ", done.stdout)


def test_the_users_trainer_still_sees_its_own_modules(project: Path, meshtune: Run) -> None:
    (project / "train.py").write_text(
        "import sys, trainer\n"
        "print('MESHTUNE_RESULT {\"speed\": %f}' % trainer.speed(int(sys.argv[1])))\n"
    )
    space = project / "own.yaml"
    space.write_text(
        "version: 1\nname: own\nobjective: {maximize: speed}\nbudget: {trials: 2}\n"
        "cluster: {name: toy, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}\n"
        f"trainer: {{command: [{sys.executable}, {project / 'train.py'}, '{{mbs}}']}}\n"
        "parameters: {mbs: [1, 2]}\nfinalists: false\n"
    )
    done = meshtune("search", str(space), "--launcher", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "best: 20 speed" in done.stdout
    assert "report: " in done.stdout


def test_a_rank_started_by_slurm_is_the_built_in_trainer(project: Path) -> None:
    """srun starts the exact command, in the trial's folder and with the user's environment."""
    environ = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "meshtune.run_module", "trainer", "--help"],
        cwd=project, env=environ, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CONFIG.json" in done.stdout


def test_a_module_imported_before_is_named_with_its_file(project: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    code = "import trainer\nimport meshtune"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project, env=environ, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert f"{project / 'trainer.py'} was imported as 'trainer'" in done.stderr
    assert "pipx install meshtune" in done.stderr


def test_a_module_without_a_file_is_named_too() -> None:
    code = (
        "import sys, types\nsys.modules['trainer'] = types.ModuleType('trainer')\nimport meshtune"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert "a module without a file was imported as 'trainer'" in done.stderr


def test_an_installed_distribution_that_overwrites_a_package_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name in ("meshtune", *PACKAGES):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    record = site / "meshtune-0.1.0.dist-info" / "RECORD"
    other = site / "other-2.0.dist-info"
    for folder in (record.parent, other):
        folder.mkdir()
        name, version = folder.name.removesuffix(".dist-info").split("-")
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    digest = "sha256=not-what-is-there"
    record.write_text(f"trainer/__init__.py,{digest},9\n")
    (other / "RECORD").write_text(f"trainer/__init__.py,{digest},9\n")
    done = subprocess.run(
        [sys.executable, "-m", "meshtune", "--help"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{site / 'trainer' / '__init__.py'} is not meshtune's" in done.stderr
    assert "distribution other" in done.stderr
    assert "pipx install meshtune" in done.stderr


def test_the_packages_as_installed_are_accepted(tmp_path: Path) -> None:
    """The digests are those that pip writes."""
    import base64
    import hashlib

    site = tmp_path / "site-packages"
    for name in ("meshtune", *PACKAGES):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = site / "meshtune-0.1.0.dist-info"
    folder.mkdir()
    sha = hashlib.sha256((ROOT / "trainer/__init__.py").read_bytes()).digest()
    digest = base64.urlsafe_b64encode(sha).decode().rstrip("=")
    (folder / "RECORD").write_text(f"trainer/__init__.py,sha256={digest},99\n")
    done = subprocess.run(
        [sys.executable, "-m", "meshtune", "--help"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
