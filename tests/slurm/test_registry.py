"""Launchers by name: meshtune's own, and those that other distributions offer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from foundation.registry import RegistryError
from slurm.launcher import LAUNCHERS, LauncherOptions, make_launcher
from slurm.local.launcher import LocalLauncher

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lays out a distribution with entry points as pip does; its modules are given as texts."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name: str, points: dict[str, str], **modules: str) -> None:
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[meshtune.launchers]", *lines]) + "\n")

    return installed


def test_a_launcher_is_made_by_its_name() -> None:
    with closing(make_launcher("local", LauncherOptions(num_nodes=3))) as launcher:
        assert isinstance(launcher, LocalLauncher)
        assert list(launcher.nodes()) == ["local0", "local1", "local2"]


def test_an_unknown_launcher_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(RegistryError, match=r"no launcher 'slrm': there are local, srun"):
        make_launcher("slrm", LauncherOptions())


def test_a_launcher_that_only_the_caller_has_is_found_and_listed() -> None:
    with closing(LocalLauncher()) as mine:
        assert make_launcher("mine", LauncherOptions(), {"mine": lambda _: mine}) is mine
    with pytest.raises(RegistryError, match="mine"):
        make_launcher("yours", LauncherOptions(), {"mine": lambda _: mine})


def test_an_installed_distribution_adds_a_launcher(install: Install) -> None:
    text = "from slurm.local.launcher import LocalLauncher as L\nmake = lambda o: L(o.num_nodes)\n"
    install("acme", {"kube": "acme_kube:make"}, acme_kube=text)
    assert "kube" in LAUNCHERS.names()
    assert "acme_kube" not in sys.modules  # only when it is asked for
    with closing(make_launcher("kube", LauncherOptions(num_nodes=2))) as launcher:
        assert len(launcher.nodes()) == 2


@pytest.mark.parametrize(
    ("value", "text", "words"),
    [
        ("acme_kube:make", "import no_such_module", "No module named 'no_such_module'"),
        ("acme_kube:other", "make = None", "other"),
        ("acme_kube:make", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_broken_entry_point_is_an_error_that_names_its_distribution(
    install: Install, value: str, text: str, words: str
) -> None:
    install("acme", {"kube": value}, acme_kube=text)
    with pytest.raises(RegistryError, match=r"launcher 'kube' of acme 1\.2") as error:
        make_launcher("kube", LauncherOptions())
    assert words in str(error.value)


def test_a_factory_that_makes_no_launcher_is_an_error(install: Install) -> None:
    install("acme", {"kube": "acme_kube:make"}, acme_kube="make = lambda options: 7")
    with pytest.raises(RegistryError, match="launcher 'kube' is of type int"):
        make_launcher("kube", LauncherOptions())


def test_a_name_that_two_distributions_offer_is_an_error_that_names_both(install: Install) -> None:
    install("acme", {"kube": "acme_kube:make"})
    install("best", {"kube": "best_kube:make"})
    with pytest.raises(RegistryError, match=r"acme 1\.2 and best 1\.2"):
        make_launcher("kube", LauncherOptions())


def test_nobody_takes_the_name_of_a_launcher_of_meshtunes(install: Install) -> None:
    install("acme", {"local": "acme_kube:make"}, acme_kube="1 / 0")
    with closing(make_launcher("local", LauncherOptions())) as launcher:
        assert isinstance(launcher, LocalLauncher)


def test_looking_for_launchers_imports_none_of_them() -> None:
    program = (
        "import sys; from slurm.launcher import LAUNCHERS; LAUNCHERS.names();"
        "heavy = {'slurm.local.launcher', 'slurm.srun.launcher', 'torch', 'deephyper', 'pydantic'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
