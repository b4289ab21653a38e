"""What an installation brings: no torch for searching, and packages that type checkers follow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml

from support import older_torch
from workflows.launching import _has_torch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = sorted(p.parent.name for p in ROOT.glob("*/py.typed"))
SPACE = """
version: 1
name: blocked
model: llama_8b
cluster: dgx_h100
trainer: {command: [train, "{tp}", "{mbs}", "{gas}"]}
parameters: {num_nodes: 1, tp: [1, 2, 4, 8], mbs: [1, 2], global_batch_size: 64}
objective: {maximize: tokens_per_second}
budget: {trials: 3}
"""
COMMANDS = """
import sys
if sys.argv.pop(1) == "none":
    sys.modules["torch"] = None
else:
    import torch
    from workflows.launching import OLDEST_TORCH, _release
    assert _release(torch.__version__) < _release(OLDEST_TORCH)
from workflows.cli.main import main
codes = [main(command.split()) for command in sys.argv[1:]]
print(codes)
"""


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_searching_brings_no_torch() -> None:
    left, seen = [name_of(each) for each in PROJECT["project"]["dependencies"]], set[str]()
    while left:
        if (name := left.pop()) in seen:
            continue
        seen.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        left += [name_of(each) for each in needed if "extra ==" not in each]
    assert {"deephyper", "numpy", "pydantic-core"} <= seen
    assert not seen & {"torch", "deepspeed", "triton"}


@pytest.mark.parametrize("torch", ["none", "older"])
def test_without_our_torch_a_search_is_predicted_run_and_reported(
    tmp_path: Path, torch: str
) -> None:
    others = older_torch.environment() if torch == "older" else {}
    (tmp_path / "space.yaml").write_text(SPACE)
    commands = ["check space.yaml", "predict space.yaml", "search space.yaml --launcher simulate",
                "export runs/blocked-simulated --to megatron-lm",
                "submit space.yaml --nodes 1 --time 6h --dry-run", "search tiny_cpu"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, torch, *commands], capture_output=True, text=True,
        cwd=tmp_path, env=os.environ | others, timeout=240,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 2]", done.stderr
    assert "PyTorch 2.13 or later: pip install 'meshtune[trainer]'" in done.stderr
    assert (tmp_path / "runs/blocked-simulated/report/index.html").is_file()


@pytest.mark.parametrize("version", ["1.13.0a0+gitunknown", "2.6.0+debian", "2.99.0"])
def test_a_distributions_torch_is_the_older_one_unless_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    torch = tmp_path / "python3/dist-packages/torch"
    torch.mkdir(parents=True)
    (torch / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    (torch / "version.py").write_text(f"debug = False\n__version__ = '{version}'\n")
    monkeypatch.setattr(older_torch, "FOLDER", tmp_path)
    if version == "2.99.0":
        with pytest.raises(pytest.skip.Exception, match="is new enough"):
            older_torch.environment()
    else:
        assert older_torch.environment()["PYTHONPATH"] == str(torch.parent)


def test_a_torch_without_metadata_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PathFinder, "find_distributions", lambda *_: [])
    assert not _has_torch()


def test_a_python_without_venv_where_nothing_may_be_installed_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\n')
    python.chmod(0o755)
    made = f"{tmp_path}/venv/bin/python"
    refused = subprocess.run(
        ["make", "-s", made, f"VENV={tmp_path}/venv", f"PYTHON={python}", "AS_ROOT=false"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 2
    assert f"{python} has no venv: install python3-venv, or name conda's" in refused.stdout


def test_a_package_that_cannot_be_unpacked_is_no_error_of_make(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    (tools / "apt-get").write_text(
        "#!/bin/sh\ncase $1 in download) echo x > broken.deb ;; *) echo Inst python3-torch; esac\n"
    )
    (tools / "apt-get").chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "older-torch", f"VENV={tmp_path}/venv", "AS_ROOT="], cwd=ROOT,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, "tests beside it will be skipped" in done.stdout) == (0, True), done
    assert not (tmp_path / "venv/older-torch").exists()


def test_an_editable_install_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "70.1", reason="needs setuptools that make wheels")
    for entry in ("pyproject.toml", "README.md", *PACKAGES):
        (tmp_path / entry).symlink_to(ROOT / entry)
    build = "from setuptools.build_meta import build_editable; build_editable('.')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        installed = [name for name in files.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in installed] == [".pth"]
        assert files.read(installed[0]).decode().strip() == str(tmp_path)


def test_every_package_of_the_wheel_has_types() -> None:
    tool = PROJECT["tool"]["setuptools"]
    included = {pattern.rstrip("*") for pattern in tool["packages"]["find"]["include"]}
    assert included == set(PACKAGES)
    assert all("py.typed" in tool["package-data"][name] for name in included)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    (script,) = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    lines = (ROOT / script).read_text().splitlines()
    assert "make test" in lines and "make lint" in lines
    assert re.search(r"^make test +#", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_what_runs_before_a_commit_is_a_target_of_the_makefile() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repository["hooks"]
    target = hook["entry"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = PROJECT["project"]["version"]
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", version)
    assert citation["license"] == PROJECT["project"]["license"]["text"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["project"]["urls"]["Paper"] == citation["references"][0]["url"]
