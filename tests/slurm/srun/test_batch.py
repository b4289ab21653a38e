"""The batch script. After a change that is meant, refresh the shipped example and read it:

MESHTUNE_REFRESH_GOLDEN=1 .venv/bin/pytest tests/slurm/srun/test_batch.py; git diff tests/slurm
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.run.events import Opened, Proposed
from analysis.run.journal import Journal
from foundation.container import Container
from slurm.launcher import LauncherError
from slurm.minicluster.cluster import Minicluster
from slurm.srun import batch, shell
from slurm.srun.batch import BatchError, BatchJob
from slurm.srun.shell import NoAnswerError, SlurmError
from slurm.srun.site import Site
from support.batch_scripts import script
from support.waiting import wait_for

SHIPPED = Path(__file__).parents[3] / "docs" / "guide" / "search.sbatch"


def test_the_shipped_example_is_what_the_builder_makes() -> None:
    text = script(
        Path("/lustre/orion/PROJECT/scratch/USER/runs/gpt_175b"),
        space="gpt_175b_frontier",
        site=Site.load("frontier"),
        nodes=128,
        time="06:00:00",
        account="PROJECT",
    )
    if os.environ.get("MESHTUNE_REFRESH_GOLDEN"):
        SHIPPED.write_text(text)
    assert text == SHIPPED.read_text()


def test_the_users_choice_replaces_the_sites() -> None:
    site = Site.load("perlmutter")
    text = script(Path("/r"), site=site, qos="debug", partition="p", account="m1")
    assert "#SBATCH --qos=debug\n" in text
    assert "--qos=regular" not in text
    assert "#SBATCH --partition=p\n" in text
    assert "#SBATCH --account=m1\n" in text


def test_what_sbatch_is_told_besides_overrides_the_site_but_not_the_search(tmp_path: Path) -> None:
    text = script(tmp_path, further=["constraint=nvme", "--gpus-per-node=2", "job-name=mine"])
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --constraint=nvme" in directives
    assert [d for d in directives if "gpus-per-node" in d] == ["#SBATCH --gpus-per-node=2"]
    assert [d for d in directives if "job-name" in d] == ["#SBATCH --job-name=mine"]
    for option, complaint in {
        "requeue": "the script sets --requeue",
        "--account=a": "`meshtune submit` has --account itself",
        "accou=a": "`meshtune submit` has --account itself",
        "no-req": "the script sets --no-requeue",
        "test-only": "with --test-only there is no job",
        "cluster=other": "with --clusters there is no job",
        "parsable": "with --parsable there is no job",
        "-C gpu": "accepted NAME or NAME=VALUE",
        "comment=a'b": "a quote, backslash or line break",
    }.items():
        with pytest.raises(BatchError, match=complaint):
            script(tmp_path, further=[option])


def test_the_warning_comes_in_time_even_in_a_short_job() -> None:
    assert "--signal=B:USR1@300\n" in script(Path("/r"), time="02:00:00")
    assert "--signal=B:USR1@30\n" in script(Path("/r"), time="2")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:05", 131405),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert BatchJob.time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "00:00:00", "2h", "1:2:3:4", "-1", "1:75", "1\n2"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(BatchError, match="--time"):
        BatchJob.time_limit_s(text)


@pytest.mark.parametrize("account", ["a'b", 'a"b', "a\nb"])
def test_a_value_cannot_break_out_of_its_directive(account: str) -> None:
    with pytest.raises(BatchError, match="cannot take it"):
        script(Path("/r"), account=account)


def test_a_folder_with_a_space_and_a_percent_sign_stays_one_argument(tmp_path: Path) -> None:
    run = tmp_path / "my 5% run"
    text = script(run)
    assert f'#SBATCH "--output={tmp_path}/my 5%% run/slurm-%j.log"\n' in text
    assert f"--run-dir '{run}'" in text


def test_the_job_runs_the_meshtune_it_was_submitted_with() -> None:
    text = script(Path("/r"), meshtune=None)
    assert f"{Path(sys.executable).with_name('meshtune')} search tiny_cpu " in text


# ---- what bash makes of it: a driver that records signals, and commands that record calls ----

DRIVER = """\
import os, signal, sys, time
from pathlib import Path
run = Path(sys.argv[sys.argv.index("--run-dir") + 1])
log = run / "driver.log"
def note(text):
    with log.open("a") as file:
        print(text, file=file)
# Waited for: a handler would miss a signal that comes just before it sleeps.
awaited = {signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
# Bash does not act on a signal that comes just before it waits until the driver has ended.
bash = Path(f"/proc/{os.getppid()}/stat")
while bash.read_text().rpartition(")")[2].split()[0] != "S":
    time.sleep(0.01)
note("started")
if log.read_text().count("started") > 1:
    sys.exit(0)
if info := signal.sigtimedwait(awaited, 120):
    note(signal.Signals(info.si_signo).name)
    with (run / "journal.jsonl").open("a") as file:
        print('{"event": "ended", "final": true}', file=file)
    time.sleep(0.3)  # a driver takes its time: bash must not take the signal for its end
    sys.exit(3)
"""


def a_driver(folder: Path) -> str:
    program = folder / "driver"
    program.write_text(f"#!{sys.executable}\n{DRIVER}")
    program.chmod(0o755)
    return str(program)


def run_in_bash(tmp_path: Path, number: signal.Signals) -> tuple[int, list[str], list[str]]:
    """Signal the script's shell; return its exit code, the driver's notes and the commands run."""
    run = tmp_path / "run"
    run.mkdir()
    calls = tmp_path / "calls"
    for name in ("scontrol", "sbatch"):
        shim = tmp_path / name
        shim.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n[ {name} = sbatch ]\n')
        shim.chmod(0o755)
    (run / "search.sbatch").write_text(script(run, meshtune=a_driver(tmp_path)))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    shell_process = subprocess.Popen(["bash", str(run / "search.sbatch")], env=environ)
    log = run / "driver.log"
    wait_for(lambda: log.exists() and "started" in log.read_text(), "the driver's start")
    shell_process.send_signal(number)
    code = shell_process.wait(250)
    return code, log.read_text().split(), calls.read_text().splitlines() if calls.exists() else []


def test_the_drivers_end_after_the_warning_requeues_and_where_that_is_forbidden_chains(
    tmp_path: Path,
) -> None:
    code, notes, calls = run_in_bash(tmp_path, signal.SIGUSR1)
    assert notes == ["started", "SIGUSR1"]
    assert calls == ["scontrol requeue 77", f"sbatch {tmp_path}/run/search.sbatch"]
    assert code == 0


def test_a_requeue_is_asked_for_again_while_the_controller_is_away(tmp_path: Path) -> None:
    """With the words of 22.05 while no slurmctld runs; it must not end the chain."""
    run, calls = tmp_path / "run", tmp_path / "calls"
    run.mkdir()
    programs = {
        "driver": f"echo '{{\"final\": true}}' >> {run}/journal.jsonl; exit 3",
        "scontrol": f'echo "$*" >> {calls}; [ $(wc -l < {calls}) -gt 2 ] && exit 0; '
        "echo 'Unexpected message received for job 77' >&2; exit 1",
        "sbatch": f"echo sbatch >> {calls}",
        "sleep": f'echo "sleep $1" >> {calls}.pauses',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script(run, meshtune=str(tmp_path / "driver"))],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"},
        timeout=250,
    )
    assert done.returncode == 0
    assert calls.read_text().splitlines() == ["requeue 77"] * 3
    assert (tmp_path / "calls.pauses").read_text().splitlines() == ["sleep 1", "sleep 2"]


@pytest.mark.parametrize("listed", [True, False])
def test_a_job_whose_submission_nobody_confirmed_is_looked_for_and_never_submitted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    run, calls = tmp_path / "a run", tmp_path / "calls"
    run.mkdir()
    others = f"8|RUNNING|{run}/other.sbatch\n9|RUNNING|"
    jobs = f"{others}\n12|PENDING|{run}/search.sbatch" if listed else others
    timed_out = (
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    )
    for name, text in {
        "sbatch": f"echo sbatch >> {calls}; echo '{timed_out}' >&2; exit 1",
        "squeue": f"printf '%s\\n' '{jobs}'",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if listed:
        assert batch.BatchJob.submit("#!/bin/bash\n", run) == "12"
        assert batch.BatchJob.of(run) == batch.BatchJob("12", "pending")
    else:
        with pytest.raises(SlurmError, match=r"Socket timed out.*look once more with squeue"):
            batch.BatchJob.submit("#!/bin/bash\n", run)
    assert calls.read_text().split() == ["sbatch"]


def test_a_queue_that_cannot_be_listed_does_not_make_a_submission_a_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in {
        "sbatch": "Batch job submission failed: Socket timed out on send/recv operation",
        "squeue": "Invalid user",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'error: {said}' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NoAnswerError, match=r"Socket timed out.*Invalid user.*with squeue"):
        batch.BatchJob.submit("#!/bin/bash\n", tmp_path)


@pytest.mark.parametrize(
    ("answer", "job"), [("12", "12"), ("12;other", "12"), ("Welcome!\n12", "12"), ("", None)]
)
def test_a_job_without_an_id_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, job: str | None
) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if job:
        assert batch.BatchJob.submit("#!/bin/bash\n", tmp_path) == job
    else:
        with pytest.raises(NoAnswerError, match="no job's id"):
            batch.BatchJob.submit("#!/bin/bash\n", tmp_path)


def test_the_users_defaults_of_sbatch_do_not_override_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\nenv > {tmp_path}/env; echo 12\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    overriding = {"TIMELIMIT", "PARTITION", "NO_REQUEUE", "OUTPUT", "MEM_PER_CPU", "ARRAY_INX"}
    for name in {"ACCOUNT", "CONSTRAINT", *overriding}:
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    batch.BatchJob.submit(script(tmp_path, account=None, partition="gpu"), tmp_path)
    kept = re.findall(r"(?m)^SBATCH_(\w+)=", (tmp_path / "env").read_text())
    assert set(kept) == {"ACCOUNT", "CONSTRAINT"}


def test_a_cancelled_job_does_not_requeue_itself(tmp_path: Path) -> None:
    code, notes, calls = run_in_bash(tmp_path, signal.SIGTERM)
    assert notes == ["started", "SIGTERM"]
    assert calls == []
    assert code == 3


def test_an_allocation_in_which_no_trial_ended_is_not_repeated(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    program = tmp_path / "driver"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script(run, meshtune=str(program))], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no trial ended" in done.stderr


@pytest.mark.parametrize(
    ("kind", "code", "asked"), [("ok", 0, ["requeue 77"]), ("cancelled", 1, [])]
)
def test_an_allocation_in_which_only_finalists_were_measured_again_is_repeated(
    tmp_path: Path, kind: str, code: int, asked: list[str]
) -> None:
    run, program, calls = tmp_path / "run", tmp_path / "driver", tmp_path / "scontrol.calls"
    run.mkdir()
    for path, text in (
        (program, f"#!{sys.executable}\n{FINALS.replace('KIND', kind)}"),
        (tmp_path / "scontrol", f'#!/bin/sh\necho "$*" >> {calls}\n'),
    ):
        path.write_text(text)
        path.chmod(0o755)
    journal = Journal(run)
    journal.write(Opened(space="s", fingerprint="f", seed=0, launcher="srun", nodes=["n1"],
                  objective={"maximize": "speed"}))  # fmt: skip
    journal.write(Proposed(trial=1, config={}, by="random", why="", expected={}))
    journal.close()
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    done = subprocess.run(["bash", "-c", script(run, meshtune=str(program))], env=environ)
    assert done.returncode == code
    assert (calls.read_text().splitlines() if calls.exists() else []) == asked


FINALS = """\
import sys
from pathlib import Path
from analysis.run.events import Ended, Started
from analysis.run.journal import Journal
from analysis.run.fold import read_run
journal = Journal(Path(sys.argv[sys.argv.index("--run-dir") + 1]))
journal.write(Started(trial=1, attempt=2, name="x", nodes=["n1"], repeat=True))
journal.write(Ended(trial=1, attempt=2, kind="KIND", objective=1.0, result={}, message="",
              stderr_tail="", elapsed_s=1.0, nodes=["n1"], final=False))
sys.exit(3)
"""


@pytest.mark.slurm
def test_a_submitted_job_is_warned_requeued_under_its_id_and_goes_on(
    tmp_path: Path, minicluster: Minicluster
) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    job = batch.BatchJob.submit(script(run, meshtune=a_driver(tmp_path)), run)
    log = run / "driver.log"
    try:
        wait_for(lambda: log.exists() and "started" in log.read_text(), "the driver's start")
        # What Slurm sends --signal=B:USR1 with, without waiting for the job's last seconds.
        shell.run(["scancel", "--batch", "--signal=USR1", job])
        wait_for(lambda: log.read_text().count("started") == 2, "the second allocation")
        wait_for(lambda: job not in shell.run(["squeue", "-h", "-o", "%A"]), "the job's end")
    finally:
        shell.run(["scancel", job])
    assert log.read_text().split() == ["started", "SIGUSR1", "started"]
    assert (run / f"slurm-{job}.log").exists()


def test_a_script_sets_up_what_its_site_says(tmp_path: Path) -> None:
    """Modules, those of containers where trials run in them, and lines of shell, in this order."""
    profile = tmp_path / "site.yaml"
    profile.write_text(
        "source: a test\nmodules: [rocm]\nsetup: [source /me/env.sh]\n"
        "containers: {runtime: apptainer, modules: [enable-gpu]}\n"
    )
    site = Site.load(str(profile))
    contained = script(tmp_path, site=site, container=Container(image="ubuntu:24.04"))
    assert "module load rocm\nmodule load enable-gpu\nsource /me/env.sh\n\nset -u" in contained
    assert "enable-gpu" not in script(tmp_path, site=site)
    with pytest.raises(LauncherError, match="there is no image /nowhere"):
        script(tmp_path, site=site, container=Container(image="/nowhere.sif"))
