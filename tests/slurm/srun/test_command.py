"""The srun line. After a change that is meant, refresh the golden files and read the difference:

MESHTUNE_REFRESH_GOLDEN=1 .venv/bin/pytest tests/slurm/srun/test_command.py; git diff tests
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from foundation.python import isolated_argv
from slurm import agent
from slurm.launcher import LauncherError
from slurm.srun.command import srun_argv, srun_environment
from slurm.srun.site import Site, SiteError
from slurm.trial import Lease, TrialSpec

GOLDEN = Path(__file__).parent / "golden"
LEASE = Lease("7", ("node002", "node003"))
SPEC = TrialSpec(
    name="meshtune-1a2b3c4d-0007-1",
    directory=Path("/runs/r/trials/0007"),
    argv=("python", "-m", "trainer", "/runs/r/trials/0007/config.json"),
    num_nodes=2,
    ranks_per_node=8,
    timeout_s=1200,
    env={"MY_SETTING": "1"},
)


def argv(site: str = "generic", **changes: object) -> list[str]:
    return srun_argv(replace(SPEC, **changes), LEASE, Site.load(site), cpus_per_node=64)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", Site.shipped())
def test_the_line_of_each_site_is_the_recorded_one(name: str) -> None:
    site = Site.load(name)
    spec = replace(SPEC, ranks_per_node=4) if name == "perlmutter" else SPEC
    environment = srun_environment(spec, site, "node002", {}, 64)
    lines = [f"{key}={value}" for key, value in sorted(environment.items())]
    argv = srun_argv(spec, LEASE, site, 64)
    ours = {agent.__file__: "agent.py", sys.executable: "python"}
    line = [ours.get(argument, argument) for argument in argv]
    text = "\n".join([*lines, shlex.join(line), ""])
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("MESHTUNE_REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_frontiers_line_is_that_of_its_guide() -> None:
    line = shlex.join(argv("frontier"))
    assert line.startswith("srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest ")


def test_the_step_is_as_wide_as_its_lease_or_there_is_no_line() -> None:
    with pytest.raises(LauncherError, match="needs 3 nodes, its lease has 2"):
        argv(num_nodes=3)


def test_the_backstop_lies_beyond_the_trials_own_timeout() -> None:
    assert "--time=21" in argv(timeout_s=1200)
    assert "--time=22" in argv(timeout_s=1201)


def test_a_ranks_memory_limit_becomes_the_nodes_rounded_up() -> None:
    assert "--mem=0" in argv()
    assert "--mem=801M" in argv(memory_bytes_per_rank=100 * 2**20 + 1)


def test_cpus_are_the_trials_or_the_sites_or_an_equal_share_of_the_nodes() -> None:
    assert "-c3" in argv("frontier", cpus_per_rank=3)
    assert "-c7" in argv("frontier")
    assert "-c8" in argv("generic")
    assert "-c1" in argv("generic", ranks_per_node=100)


def test_the_jobs_settings_do_not_leak_into_the_step_but_the_way_to_slurm_does() -> None:
    inherited = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_EXPORT_ENV": "NONE",
        "SRUN_CPUS_PER_TASK": "3",
        "SBATCH_PARTITION": "p",
        "SLURM_CONF": "/etc/other.conf",
        "SLURM_JOB_ID": "12",
        "SLURM_NETWORK": "disable_rdzv_get",
        "PATH": "/bin",
        "MASTER_ADDR": "elsewhere",
    }
    environment = srun_environment(SPEC, Site.load("generic"), "node002", inherited, 64)
    kept = {k: v for k, v in environment.items() if k.startswith(("SLURM", "SRUN", "SBATCH"))}
    assert kept == {
        "SLURM_CONF": "/etc/other.conf",
        "SLURM_JOB_ID": "12",
        "SLURM_NETWORK": "disable_rdzv_get",
    }
    assert environment["PATH"] == "/bin"
    assert environment["MASTER_ADDR"] == "node002"


def test_the_trials_environment_wins_over_the_sites() -> None:
    own = {"NCCL_SOCKET_IFNAME": "hsn0", "SLURM_LABELIO": "1"}  # which would label agents' words
    spec = replace(SPEC, env=own)
    environment = srun_environment(spec, Site.load("frontier"), "node002", {}, 64)
    assert "SLURM_LABELIO" not in environment
    assert environment["NCCL_SOCKET_IFNAME"] == "hsn0"


def test_frontiers_ranks_have_the_network_of_its_guide_and_caches_of_their_node() -> None:
    environment = srun_environment(SPEC, Site.load("frontier"), "node002", {}, 64)
    asked = {
        "NCCL_NET_GDR_LEVEL": "PHB",
        "FI_MR_CACHE_MONITOR": "kdreg2",
        "FI_CXI_DEFAULT_CQ_SIZE": "131072",
        "FI_CXI_RX_MATCH_MODE": "hybrid",
    }
    assert {name: environment[name] for name in asked} == asked
    caches = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MIOPEN_USER_DB_PATH")
    assert all(environment[name].startswith("/tmp/") for name in caches)


def test_a_line_run_by_hand_has_torchs_names_and_its_arguments_untouched() -> None:
    arguments = ["a b", "$HOME", "`id`", "", "'", "*"]
    show = ["sh", "-c", 'echo "$RANK $LOCAL_RANK"; printf "<%s>" "$@"', "x", *arguments]
    names = ("SLURM_PROCID=RANK", "SLURM_LOCALID=LOCAL_RANK")
    done = subprocess.run(
        isolated_argv(agent.__file__, *names, "--", *show),
        env={"PATH": os.environ["PATH"], "SLURM_PROCID": "9", "SLURM_LOCALID": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "9 1\n" + "".join(f"<{a}>" for a in arguments)


# ---- site profiles ----


def test_a_profile_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("source: my notes\ngpus: per_node\nenv: {A: b}\n")
    site = Site.load(str(path))
    assert (site.gpus, site.env, site.reference) == ("per_node", {"A": "b"}, str(path))
    assert Site.load("frontier").reference == "frontier"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1:1: found an empty file"),
        ("- a\n", "accepted a mapping of keys"),
        ("source: x\ngpu: none\n", ":2:1: key 'gpu': unknown key, accepted: source, gpus"),
        ("source: x\ngpus: some\n", "found 'some', accepted 'none'"),
        ("source: x\nenv: {A B: c}\n", "'env.A B': not a name"),
        (
            "source: x\nsrun_options: ['--a b']\n",
            "'srun_options[0]': found '--a b': accepted one option",
        ),
        ("source: x\nsrun_options: ['rm']\n", "found 'rm'"),
        ("source: x\nsrun_options: [--out=x]\n", "accepted no --output: agents speak over"),
        ("source: x\nsrun_options: [-l]\n", "accepted no --label: agents speak over"),
        ("source: x\nmax_concurrent_steps: 0\n", "max_concurrent_steps"),
        (
            "source: x\ngpus: none\ngpus: per_task\n",
            ":3:1: key 'gpus': found twice, first on line 2",
        ),
        ("a: [\n", "not YAML"),
        ("source: !!python/object:os.system x\n", "found the YAML tag"),
    ],
)
def test_a_mistake_in_a_profile_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SiteError) as error:
        Site.load(str(path))
    assert str(path) in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("frontear", "shipped are alps, frontier, generic, perlmutter"),
        ("/no/such.yaml", "/no/such.yaml: there is no such file"),
    ],
)
def test_a_profile_that_does_not_exist_is_named(reference: str, words: str) -> None:
    with pytest.raises(SiteError, match=words):
        Site.load(reference)


def test_every_shipped_profile_says_where_its_facts_are_from() -> None:
    sites = {name: Site.load(name) for name in Site.shipped()}
    assert set(sites) == {"alps", "frontier", "generic", "perlmutter"}
    assert all(isinstance(site, Site) and site.source for site in sites.values())
