"""The batch script that runs a search in allocation after allocation until it is done."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from foundation.container import Container
from foundation.files import FileError, read_text
from foundation.writing import write_atomically
from slurm.launcher import LauncherError
from slurm.outcome.kinds import Kind
from slurm.srun import shell
from slurm.srun.allocation import LEFT_OUT
from slurm.srun.command import contained, srun_argv
from slurm.srun.containers import check_image
from slurm.srun.shell import NoAnswerError, SlurmError
from slurm.srun.site import Environment, Site
from slurm.trial import Lease, TrialSpec

SCRIPT_NAME = "search.sbatch"
LOG_NAME = "slurm-%j.log"
UNPACK = Path(__file__).with_name("unpack.sh")
# Lines of the journal that show progress: ends of trials, and of repeats (not final), except ends
# that the machine caused.
_ENDED = f'"final": true|"event": "ended",.*"kind": "({"|".join(k for k in Kind if k.observed)})"'
_OPTION = re.compile(r"--[a-z][a-z0-9-]+(=.+)?")
_REFUSED = {  # options of sbatch, by the reason
    "`meshtune submit` has --{} itself": "account nodes partition qos time",
    # they would override what the script sets
    "the script sets --{}, as a search needs it": "array exclusive mem no-kill no-requeue "
    "open-mode output oversubscribe overcommit requeue signal wait wrap",
    # the job would be in another cluster's queue, or have no id
    "with --{} there is no job to follow": "clusters help parsable test-only usage version",
}
_JOB_ID = re.compile(r"^(\d+)(?:;.*)?$", re.MULTILINE)  # --parsable prints "id" or "id;cluster"
_MOST_BYTES = 1 << 16  # of a batch script, to find a line in it
_WARNING_S = 300  # before the allocation ends: for the last trials, the journal and the report
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::([0-5]?\d))?(?::([0-5]?\d))?")


class BatchError(LauncherError, ValueError):
    """A job that cannot be described to sbatch; the message names the remedy."""


def batch_script(
    *,
    space: str,
    run_dir: Path,
    site: Site,
    nodes: int,
    time: str,
    account: str | None = None,
    partition: str | None = None,
    qos: str | None = None,
    further: Sequence[str] = (),
    meshtune: str | None = None,
    options: Sequence[str] = (),
    container: Container | None = None,
) -> str:
    """The text of a batch script; pure but for ``meshtune``'s default.

    Raises BatchError if a value cannot be given to sbatch, LauncherError if the site cannot start
    the container. Its options override the site's.

    Args:
        space: a shipped space's name or an absolute path.
        run_dir: the run's folder; the same one continues the same search.
        time: the job's time limit, as sbatch takes it.
        further: options of sbatch, ``constraint=gpu`` or ``--constraint=gpu``.
        meshtune: the command; default: that of the site's environment, else the one beside the
            running interpreter, so that the job runs this installation whatever its PATH is.
        options: further options of ``meshtune search``.
        container: that trials run in.
    """
    run = run_dir.absolute()
    chosen = {"account": account, "partition": partition, "qos": qos}
    own = [f"--{name}={value}" for name, value in chosen.items() if value]
    own += [_further(option) for option in further]
    directives = _directives(run, site, nodes, time, own)
    program = [meshtune] if meshtune else _program(site.environment)
    search = [*program, "search", space, "--run-dir", str(run)]
    search += ["--launcher", "srun", "--site", site.reference, *options]
    return _filled(
        "search.sh",
        directives="\n".join(f"#SBATCH {_directive(option)}" for option in directives),
        modules=_set_up(site, container),
        environment=_environment(site.environment) if site.environment else "",
        search=shlex.join(search),
        ended=shlex.quote(_ENDED),
        journal=shlex.quote(str(run / "journal.jsonl")),
        script=shlex.quote(str(BatchJob.script_of(run))),
    )


def _set_up(site: Site, container: Container | None) -> str:
    """Lines that load modules, and the site's own."""
    modules = list(site.modules)
    if container is not None:
        containers = site.containers_for(container.image)
        check_image(container, containers)
        modules += containers.modules
    lines = [*(f"module load {shlex.quote(name)}" for name in modules), *site.setup]
    return "".join(f"{line}\n" for line in lines)


# Bash runs a trap only after the foreground command has ended, and --signal=B: reaches the batch
# shell alone. So search.sh runs the driver in the background, and repeats `wait` until no signal
# has interrupted it; bash remembers an exit code that `wait` has already returned.
def _filled(template: str, **values: str) -> str:
    """A shell script of this folder with a value in place of each ``@name@``."""
    text = Path(__file__).with_name(template).read_text()
    return re.sub("@([a-z_]+)@", lambda found: values[found[1]], text)


def _environment(environment: Environment) -> str:
    """Lines that copy an environment to every node, and leave out nodes where that fails."""
    return _filled(
        "environment.sh",
        left_out=LEFT_OUT,
        archive=shlex.quote(environment.archive),
        sent=shlex.quote(environment.sent),
        folder=shlex.quote(environment.folder),
        unpack=shlex.quote(UNPACK.read_text()),  # nodes need not see where this package is
    )


def _directives(run: Path, site: Site, nodes: int, time: str, own: Sequence[str]) -> list[str]:
    """The options of sbatch; the user's ``own`` override the site's."""
    given = {_name(option) for option in own}
    return [
        *([] if "job-name" in given else [f"--job-name=meshtune-{run.name}"]),
        f"--nodes={nodes}",
        f"--time={time}",
        *own,
        *(o for o in site.batch_options if _name(o) not in given),
        "--exclusive",
        "--mem=0",
        "--no-kill",
        "--requeue",
        f"--signal=B:USR1@{min(_WARNING_S, BatchJob.time_limit_s(time) // 4)}",
        "--open-mode=append",
        f"--output={_log(run)}",
    ]


@dataclass(frozen=True)
class BatchJob:
    id: str
    state: str  # as squeue lists it: pending, running ...

    @staticmethod
    def script_of(run_dir: Path) -> Path:
        return run_dir.absolute() / SCRIPT_NAME

    @staticmethod
    def trial_line(spec: TrialSpec, site: Site, cpus_per_node: int) -> str:
        """The srun line of a trial, with NODES for the nodes that its job will get."""
        nodes = tuple(f"NODE{i}" for i in range(spec.num_nodes))
        inside = contained(spec, site)
        line = shlex.join(srun_argv(inside, Lease(spec.name, nodes), site, cpus_per_node))
        return line.replace(",".join(nodes), "NODES")

    @staticmethod
    def time_limit_s(time: str) -> int:
        """Seconds of a time limit in one of sbatch's forms.

        ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``.

        Raises BatchError for any other form, and for zero.
        """
        found = _TIME.fullmatch(time)
        if not found:
            raise BatchError(
                f"--time {time!r} is not a time limit; write hours:minutes:seconds, or 6h"
            )
        days, *parts = (int(p) if p else None for p in found.groups())
        from_hours = days is not None or parts[2] is not None
        sizes_s = (3600, 60, 1) if from_hours else (60, 1)
        total_s = 86400 * (days or 0) + sum(
            n * s for n, s in zip(parts, sizes_s, strict=False) if n
        )
        if total_s == 0:
            raise BatchError(
                f"--time {time!r} is zero; give the job a time limit above 0, such as 6h"
            )
        return total_s

    @classmethod
    def of(cls, run_dir: Path) -> Self | None:
        """This user's job that searches, or will search, in a run's folder.

        Raises SlurmError if squeue fails, or Slurm's controller does not answer for ten minutes.
        """
        script = str(cls.script_of(run_dir))
        log = _directive(f"--output={_log(run_dir.absolute())}")
        # The command is the last column, as it may contain any character.
        listing = shell.patiently(["squeue", "-h", "-u", str(os.getuid()), "-o", "%i|%T|%o"])
        for line in listing.splitlines():
            job, state, command = [*line.split("|", 2), "", ""][:3]
            if command == script or _has_line(command, f"#SBATCH {log}"):
                return cls(job, state.lower())
        return None

    @classmethod
    def submit(cls, script: str, run_dir: Path) -> str:
        """Write the script into the run's folder and submit it once; returns the job's id.

        The job resubmits it from there.

        Raises:
            NoAnswerError: if it is unknown whether the job was submitted.
            SlurmError: if sbatch refuses it; the message quotes sbatch.
        """
        path = cls.script_of(run_dir)
        write_atomically(path, script)
        try:
            answer = shell.run(["sbatch", "--parsable", str(path)], _overriding(script))
        except NoAnswerError as error:
            # The job may have been accepted: look for it, and never submit again.
            try:
                job = cls.of(run_dir)
            except SlurmError as unlisted:  # not a refusal: the job may be pending
                raise NoAnswerError(
                    f"{error}; nor can Slurm's jobs be listed ({unlisted}): look for one of "
                    f"{run_dir} with squeue, then submit again"
                ) from error
            if job:
                return job.id
            raise NoAnswerError(
                f"{error}; Slurm lists no job of {run_dir} now: look once more with squeue, then "
                "submit again"
            ) from error
        if found := _JOB_ID.search(answer):
            return found[1]
        raise NoAnswerError(
            f"sbatch gave no job's id, but {answer!r}: look with squeue for a job of it"
        )


def _overriding(script: str) -> tuple[str, ...]:
    """Beginnings of the variables by which sbatch would override this script's own options.

    Such as SBATCH_TIMELIMIT, which a user may have as a default, or SBATCH_ARRAY_INX.
    """
    _, *never = _REFUSED.values()
    names = [*re.findall('(?m)^#SBATCH "?--([a-z-]+)', script), *" ".join(never).split()]
    return tuple(f"SBATCH_{name.upper().replace('-', '_')}" for name in names)


def _log(run: Path) -> str:
    return f"{str(run).replace('%', '%%')}/{LOG_NAME}"


def _has_line(script: str, line: str) -> bool:
    """Whether a batch script has a line, such as the log's, by which its job is recognized."""
    try:
        return line in read_text(Path(script), _MOST_BYTES).splitlines()
    except FileError:
        return False


def _further(option: str) -> str:
    """An option of sbatch that the user adds, with leading dashes; raises BatchError if refused."""
    text = f"--{option.removeprefix('--')}"
    if not _OPTION.fullmatch(text):
        raise BatchError(f"--sbatch {option}: accepted NAME or NAME=VALUE, such as constraint=gpu")
    # sbatch also accepts an abbreviated option.
    why = {name: reason for reason, names in _REFUSED.items() for name in names.split()}
    if refused := [name for name in why if name.startswith(_name(text))]:
        meant = min(refused, key=lambda name: (len(name), name))
        raise BatchError(f"--sbatch {option}: {why[meant].format(meant)}")
    return text


def _name(option: str) -> str:
    """``partition`` of ``--partition=gpu``."""
    return option.removeprefix("--").partition("=")[0]


def _directive(option: str) -> str:
    """An option quoted for a #SBATCH line."""
    if re.search(r"[\"'\\\n\r]", option):
        raise BatchError(f"{option!r} has a quote, backslash or line break; sbatch cannot take it")
    return f'"{option}"' if re.search(r"[\s#]", option) else option


def _program(environment: Environment | None) -> list[str]:
    if environment is not None:
        # Not bin/meshtune, whose first line names the path where it was installed.
        # -P: the folder that the job was submitted from may be a checkout of meshtune.
        return [f"{environment.folder}/bin/python", "-P", "-m", "meshtune"]
    beside = Path(sys.executable).with_name("meshtune")
    return [str(beside) if beside.exists() else "meshtune"]
