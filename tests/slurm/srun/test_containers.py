"""Trials in containers. pyxis and enroot are built from their sources (CONTRIBUTING.md), and
MESHTUNE_PYXIS names where; bubblewrap stands in for Apptainer, by Apptainer's exact line.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from foundation.container import Container
from slurm import agent
from slurm.launcher import LauncherError
from slurm.minicluster import cluster as mini
from slurm.minicluster.config import runtime_folder
from slurm.outcome.kinds import Kind
from slurm.srun.allocation import Allocation
from slurm.srun.command import contained, srun_argv, srun_environment, started_container
from slurm.srun.containers import Runtime
from slurm.srun.launcher import SrunLauncher
from slurm.srun.site import Site, SiteError
from slurm.trial import Kept, Lease, TrialSpec
from support.container_images import make_image
from support.launched_trials import SLEEP, marked, run_on, trial

GOLDEN = Path(__file__).parent / "golden" / "containers.txt"
SPEC = TrialSpec(
    name="meshtune-1a2b3c4d-0007-1",
    directory=Path("/runs/r/trials/0007"),
    argv=("python", "pretrain_gpt.py"),
    num_nodes=2,
    ranks_per_node=8,
    timeout_s=1200,
    env={"NCCL_DEBUG": "WARN"},
    workdir=Path("/opt/megatron-lm"),  # of the image
    container=Container(image="nvcr.io#nvidia/pytorch:25.04-py3", mounts=["/data:/data:ro"]),
)
SAY = """
import json, os
from pathlib import Path
names = ["OF_IMAGE", "MY", "PYTHONUNBUFFERED", "PYTHONPATH", "LD_LIBRARY_PATH", "WORLD_SIZE"]
Path("rank" + os.environ["RANK"]).write_text(json.dumps([os.environ.get(n) for n in names]))
Path("result.json").write_text('{"status": "ok", "x": 1}')
"""
SEEN = '["yes", "1", "1", null, null, "2"]'  # the image's, ours, ours, none of the driver's own


def site(folder: Path, **containers: object) -> Site:
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump({"source": "a test", "containers": containers}))
    return Site.load(str(file))


def test_the_line_of_each_runtime_is_the_recorded_one(tmp_path: Path) -> None:
    """After a change that is meant: MESHTUNE_REFRESH_GOLDEN=1, and read the difference."""
    lines = []
    for name in Runtime.shipped():
        own = site(tmp_path, runtime=name, options=["--of-the-site"], mounts=["/site"])
        spec = contained(SPEC, own)
        argv = srun_argv(spec, Lease("7", ("n1", "n2")), own, 64)
        line = started_container(SPEC, own)
        assert line is not None
        env = [f"{key}={value}" for key, value in sorted(spec.env.items())]
        lines += [f"# {name}", *env, shlex.join(argv), *line.file.splitlines(), ""]
    text = "\n".join(lines).replace(str(Path(agent.__file__).parent), "/slurm")
    text = text.replace(sys.executable, "python")
    if os.environ.get("MESHTUNE_REFRESH_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("image", "pyxis", "apptainer"),
    [
        ("ubuntu:24.04", "ubuntu:24.04", "docker://ubuntu:24.04"),
        ("docker://ubuntu", "ubuntu", "docker://ubuntu"),
        ("library/ubuntu", "library/ubuntu", "docker://library/ubuntu"),
        ("nvcr.io/nvidia/pytorch", "nvcr.io#nvidia/pytorch", "docker://nvcr.io/nvidia/pytorch"),
        ("localhost:5000/a/b", "localhost:5000#a/b", "docker://localhost:5000/a/b"),
        ("/shared/ngc.sqsh", "/shared/ngc.sqsh", "/shared/ngc.sqsh"),
    ],
)
def test_an_image_is_named_as_its_runtime_names_it(
    tmp_path: Path, image: str, pyxis: str, apptainer: str
) -> None:
    spec = replace(SPEC, container=Container(image=image))
    lines = [started_container(spec, site(tmp_path, runtime=r)) for r in ("pyxis", "apptainer")]
    assert lines[0] is not None and f"--container-image={pyxis}" in lines[0].words
    assert lines[1] is not None and lines[1].words[-1] == apptainer


def test_an_environment_definition_of_the_users_is_the_base_of_the_trials(tmp_path: Path) -> None:
    spec = replace(SPEC, container=Container(image="/me/ngc.toml"))
    line = started_container(spec, site(tmp_path, runtime="environment"))
    assert line is not None
    assert line.file.startswith('base_environment = "/me/ngc.toml"\nworkdir = ')


def test_a_runtime_of_ones_own_is_one_record(tmp_path: Path) -> None:
    record = {
        "source": "a test",
        "place": "command",
        "words": ["charliecloud", ["--bind={mount}"], "--env", "{names}", "{image}", "--"],
    }
    (tmp_path / "ch.yaml").write_text(yaml.safe_dump(record))
    spec = contained(SPEC, site(tmp_path, runtime=str(tmp_path / "ch.yaml")))
    assert spec.argv[:3] == (
        "charliecloud",
        "--bind=/data:/data:ro",
        "--bind=/runs/r/trials:/runs/r/trials",
    )
    assert spec.argv[-4:] == ("nvcr.io/nvidia/pytorch:25.04-py3", "--", *SPEC.argv)
    for wrong, said in (
        ({"place": "host"}, "key 'place': found 'host'"),
        ({"words": ["ch-run", ["{img}"]]}, r"key 'words\[1\]\[0\]'.*unknown placeholder {img}"),
        ({"failures": [{"text": "(", "remedy": ""}]}, "accepted a regular expression"),
    ):
        (tmp_path / "ch.yaml").write_text(yaml.safe_dump({**record, **wrong}))
        with pytest.raises(LauncherError, match=rf"ch\.yaml:\d+:\d+: .*{said}"):
            contained(SPEC, site(tmp_path, runtime=str(tmp_path / "ch.yaml")))


def test_a_site_without_a_runtime_says_what_to_add() -> None:
    with pytest.raises(SiteError, match=r"site generic names no runtime.*containers: RUNTIME"):
        contained(SPEC, Site.load("generic"))


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        (
            {"runtime": "docker"},
            r"site\.yaml:\d+:\d+: key 'containers\.runtime'.*accepted apptainer",
        ),
        ({"runtime": "pyxis", "mounts": ["data:/d"]}, r"containers\.mounts\[0\].*SOURCE:TARGET"),
        ({"runtime": "pyxis", "gpu": "nvidia"}, r"unknown key, accepted: runtime, options"),
    ],
)
def test_a_wrong_runtime_is_told_by_file_line_and_key(
    tmp_path: Path, containers: dict[str, object], message: str
) -> None:
    with pytest.raises(SiteError, match=message):
        site(tmp_path, **containers)


def test_the_drivers_own_python_and_libraries_stay_outside(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": "/me", "LD_LIBRARY_PATH": "/lib", "HOME": "/root"}
    for runtime, left in (("pyxis", {"HOME"}), ("apptainer", {"HOME", "LD_LIBRARY_PATH"})):
        own = site(tmp_path, runtime=runtime)
        env = srun_environment(SPEC, own, "n1", environ, 64)
        assert {*environ} & {*env} == left


PYXIS = "slurmstepd-n1: error: pyxis: "
PYXIS_REMOVAL = f"{PYXIS}child 26754 failed with error code: 1\n"
NO_IMAGE = "FATAL:   could not open image /a.sif: no such file or directory\n"


@pytest.mark.parametrize(
    ("runtime", "said", "code", "started", "remedy"),
    [
        ("pyxis", PYXIS_REMOVAL, 7, True, ""),
        ("pyxis", PYXIS_REMOVAL, None, False, ""),
        ("pyxis", f"{PYXIS}    curl: (6) Could not resolve host: nvcr.io\n",
         None, False, "enroot import"),
        ("pyxis", f"{PYXIS}--container-mounts: source path does not exist: /x\n",
         None, False, "mounts"),
        ("pyxis", "srun: unrecognized option '--container-image=x'\n", None, False, "no pyxis"),
        ("apptainer", NO_IMAGE, 255, True, "path"),
        ("apptainer", NO_IMAGE, 1, True, ""),  # a trainer's own words
        ("podman-hpc", "Error: initializing source x: denied\n", 125, True, "podman-hpc pull"),
        ("shifter", "FAILED to find requested image.\n", 1, True, "shifterimg pull"),
    ],
)  # fmt: skip
def test_words_of_a_runtime_tell_a_failed_start_and_what_to_do(
    runtime: str, said: str, code: int | None, started: bool, remedy: str
) -> None:
    texts = Runtime.load(runtime).texts(code, started=started)
    found = next((remedy for text, remedy in texts if text.search(said)), "")
    assert remedy in found and bool(remedy) == bool(found)


# ---- Apptainer's line, by bubblewrap ----


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an image."""
    return make_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture
def apptainer(
    launcher: SrunLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SrunLauncher:
    """The launcher of a site with Apptainer, which is on the PATH of its nodes."""
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap to stand in for Apptainer: apt-get install bubblewrap")
    if subprocess.run(["bwrap", "--bind", "/", "/", "true"], check=False).returncode:
        pytest.skip("bubblewrap makes no namespaces on this machine")
    (tmp_path / "bin").mkdir()
    stand_in = Path(__file__).parents[2] / "support" / "apptainer.sh"
    (tmp_path / "bin" / "apptainer").symlink_to(stand_in)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", "/of/the/driver")
    own = site(tmp_path, runtime="apptainer", options=["--nv"])
    return SrunLauncher(own, launcher.allocation)


def in_image(folder: Path, name: str, code: str, image: Path, **changes: object) -> TrialSpec:
    container = Container(image=str(image), mounts=changes.pop("mounts", []))  # type: ignore[arg-type]
    spec = trial(folder, name, code, env={"MY": "1"}, container=container, **changes)
    return replace(spec, argv=("python3", *spec.argv[1:]))


@pytest.mark.slurm
def test_ranks_run_in_the_image_with_the_agents_outside(
    apptainer: SrunLauncher, image: Path, tmp_path: Path
) -> None:
    spec = in_image(tmp_path, "a", SAY, image)
    outcome = run_on(apptainer, spec)
    assert outcome.kind is Kind.OK, outcome
    assert [(spec.directory / f"rank{i}").read_text() for i in (0, 1)] == [SEEN] * 2
    assert " apptainer exec --bind " in (spec.directory / "command.txt").read_text()
    failing = in_image(tmp_path, "f", "raise SystemExit(255)", image)  # Apptainer's own code, too
    assert run_on(apptainer, failing).kind is Kind.CRASH


@pytest.mark.slurm
def test_an_image_or_a_mount_that_is_missing_fails_the_launch(
    apptainer: SrunLauncher, image: Path, tmp_path: Path
) -> None:
    outcome = run_on(apptainer, in_image(tmp_path, "mount", SAY, image, mounts=["/nowhere"]))
    assert outcome.kind is Kind.LAUNCH_FAILURE
    assert "/nowhere" in outcome.message and "mounts exist on the compute nodes" in outcome.message
    with pytest.raises(LauncherError, match=r"there is no image .*nowhere\.sif"):
        apptainer.check_container(Container(image=str(tmp_path / "nowhere.sif")))


# ---- pyxis ----


@pytest.fixture(scope="module")
def pyxis(
    tmp_path_factory: pytest.TempPathFactory, image: Path
) -> Iterator[tuple[SrunLauncher, Path]]:
    """A launcher on a Slurm of two nodes with pyxis, and the image's squashfs file."""
    prefix = os.environ.get("MESHTUNE_PYXIS", f"{sys.prefix}/pyxis")
    if not Path(prefix, "plugstack.conf").is_file():
        pytest.skip("no pyxis: `make pyxis` builds it from its sources (CONTRIBUTING.md)")
    if reason := mini.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("pyxis")
    squashed = folder / "image.sqsh"
    subprocess.run(
        ["mksquashfs", image, squashed, "-quiet", "-no-progress", "-noD", "-noF"], check=True
    )
    directory = runtime_folder() / f"test-pyxis-{os.getpid()}"
    patch = pytest.MonkeyPatch()
    patch.setenv("PATH", f"{prefix}/bin:{os.environ['PATH']}")
    cluster = mini.up(directory, 2)
    patch.setenv("SLURM_CONF", str(cluster.conf))
    shutil.copy(Path(prefix, "plugstack.conf"), directory)
    # Of earlier runs, whose steps had the same ids: where several nodes are one machine, pyxis
    # does not find what it is to remove.
    for left in (data for node in cluster.nodes for data in Path(prefix, "data").glob(f"{node}-*")):
        shutil.rmtree(left)
    try:
        said = subprocess.run(
            ["salloc", "-N2", "--no-shell", "--exclusive", "--mem=0", "-t20"],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        job = said.split("job allocation ")[1].split()[0]
        yield SrunLauncher(site(folder, runtime="pyxis"), Allocation(job)), squashed
    finally:
        mini.down(directory)
        patch.undo()


def test_pyxis_runs_agents_and_ranks_in_the_image(
    pyxis: tuple[SrunLauncher, Path], tmp_path: Path
) -> None:
    launcher, image = pyxis
    spec = in_image(tmp_path, "a", SAY, image, num_nodes=2, ranks_per_node=1, workdir=None)
    assert run_on(launcher, spec).kind is Kind.OK
    assert [(spec.directory / f"rank{i}").read_text() for i in (0, 1)] == [SEEN] * 2
    failing = run_on(launcher, in_image(tmp_path, "f", "raise SystemExit(7)", image))
    assert (failing.kind, failing.exit_code) == (Kind.CRASH, 7)


def test_a_pyxis_step_is_kept_for_trials_whose_ranks_are_forked_in_it(
    pyxis: tuple[SrunLauncher, Path], tmp_path: Path
) -> None:
    launcher, image = pyxis
    kept = Kept("meshtune-pyxis-ranks", ("json",))
    for name in ("first", "second"):
        spec = in_image(tmp_path, name, SAY, image, kept=kept)
        assert run_on(launcher, spec).kind is Kind.OK
    assert (spec.directory / "command.txt").read_text().startswith("# forked in the step ")
    launcher.close()


def test_nothing_is_left_of_a_pyxis_trial_that_timed_out(
    pyxis: tuple[SrunLauncher, Path], tmp_path: Path
) -> None:
    launcher, image = pyxis
    code = "import os, subprocess, time; subprocess.Popen(['python3', '-c', 'import time; "
    code += SLEEP + "'], start_new_session=True); " + SLEEP
    spec = in_image(tmp_path, "h", code, image, timeout_s=3)
    assert run_on(launcher, spec).kind is Kind.TIMEOUT
    assert not marked(spec)


@pytest.mark.parametrize(
    ("name", "mounts", "said"),
    [
        ("no.such.registry/a:1", [], "name the file"),
        ("", ["/nowhere"], "mounts exist on the compute nodes"),
    ],
)
def test_what_pyxis_cannot_start_is_a_failed_launch(
    pyxis: tuple[SrunLauncher, Path], tmp_path: Path, name: str, mounts: list[str], said: str
) -> None:
    launcher, image = pyxis
    spec = in_image(tmp_path, "t", SAY, image, mounts=mounts)
    container = Container(image=name or str(image), mounts=mounts)
    outcome = run_on(launcher, replace(spec, container=container))
    assert outcome.kind is Kind.LAUNCH_FAILURE and said in outcome.message, outcome
