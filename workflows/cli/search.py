"""``meshtune search`` and ``submit``: start or resume a search, here or as a batch job."""

from __future__ import annotations

import math
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import analysis
import search_spaces
import slurm
from foundation.quantities import counted, duration
from workflows.cli.arguments import UsageError, archive_folder, check_site, launcher_options
from workflows.cli.working import Working

if TYPE_CHECKING:
    from search_spaces import SearchSpace


def search(arguments: Namespace) -> int:
    # Slurm's warning may come before there is a driver to handle it.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with Working(f"reading {arguments.space}", at_once=True) as tell:
        from workflows.launching import launcher_for
        from workflows.search.session import Search, dry_run, run_session

        check_site(arguments)
        space, folder, pricing = asked(arguments, lambda: tell("pricing configurations"))
    if not folder.started:
        _warn(space, pricing)

    def launch(space: SearchSpace, folder: analysis.RunFolder) -> slurm.Launcher:
        options = launcher_options(arguments, space.widths[-1])
        how = arguments.launcher, arguments.simulate, options, arguments.dry_run
        return launcher_for(space, folder, *how)

    with closing(launch(space, folder)) as launcher:
        what = Search(space, folder, launcher, arguments.seed, arguments.policy, pricing)
        if arguments.dry_run:
            for line in dry_run(what):
                print(line)
            return 0
        from workflows.search.probing import begin_with_probes  # scipy

        flags = resume_flags(arguments)
        code = begin_with_probes(what, launch, flags, always=arguments.probe)
        if code or arguments.probe:
            return code
        return run_session(what, flags, arguments.report)


def submit(arguments: Namespace) -> None:
    from workflows.submission import time_limit, undone_if_refused, written

    space, folder, pricing = asked(arguments)
    refuse_short_job(space, arguments.time)
    if arguments.nodes < (least := space.widths[0]):
        raise UsageError(
            f"--nodes {arguments.nodes}: no trial would start, as the narrowest takes "
            f"{counted(least, 'node')}: ask for them, or allow fewer (num_nodes)"
        )
    earlier = [run.absolute() for run in arguments.warm_start]
    seed = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    site = slurm.Site.load(arguments.site)
    script = slurm.batch_script(
        space=str(folder.space_file),  # frozen, whatever is edited while the job waits
        run_dir=folder.path,
        site=site,
        nodes=arguments.nodes,
        time=time_limit(arguments.time),
        account=arguments.account,
        partition=arguments.partition,
        qos=arguments.qos,
        further=[*arguments.sbatch, *(f"exclude={n}" for n in [arguments.exclude] if n)],
        options=[*seed, *policy_options(arguments.policy, earlier, arguments.no_archive)],
        container=space.trainer.container,
    )
    if site.environment is not None:
        site.environment.check()
    if arguments.dry_run:
        print(script, end="")
        print(*_foretold(space, folder, site, arguments.nodes), sep="\n", file=sys.stderr)
        print("nothing is made: a job of this script needs --write FILE", file=sys.stderr)
        return
    if arguments.write is None or folder.path.exists():  # a new folder has no job
        refuse_second_job(folder)
    _warn(space, pricing)
    # Scripts read the job's id from standard output.
    print(*_foretold(space, folder, site, arguments.nodes), sep="\n", file=sys.stderr)
    with undone_if_refused(folder):
        if not folder.started:  # left by a job that was cancelled before it began
            folder.space_file.unlink(missing_ok=True)
        folder.create(space)
        if arguments.write is not None:
            written(script, arguments.write, folder)
            print(f"`sbatch {quote(str(arguments.write))}` starts the search in {folder.path}")
            return
        job = slurm.BatchJob.submit(script, folder.path)
    print(f"submitted job {job}; `meshtune status {quote(str(folder.path))}` shows its progress")


def _foretold(
    space: SearchSpace, folder: analysis.RunFolder, site: slurm.Site, nodes: int
) -> Iterator[str]:
    """The cost of a search that a job will run, and the line that starts a trial there."""
    from workflows.estimate import Estimate
    from workflows.try_out import started_by

    yield Estimate.of(space).text(nodes)
    yield from started_by(space, site, folder)


def _warn(space: SearchSpace, pricing: analysis.Pricing | None) -> None:
    """Print what will go wrong with a search, before anything is started for it."""
    for warning in analysis.search_warnings(space, pricing or analysis.Pricing.of(space)):
        print(warning)


def asked(
    arguments: Namespace, pricing_begins: Callable[[], object] = lambda: None
) -> tuple[SearchSpace, analysis.RunFolder, analysis.Pricing | None]:
    """The space to search, the run's folder, and prices learnt from earlier runs if any are given.

    Raises UsageError, SpaceError or RegistryError if the arguments are wrong.
    """
    from workflows.optimizer.registry import POLICIES

    space = _space(arguments)
    folder = analysis.RunFolder(run_directory(arguments, space))
    space = _with_the_runs_share(space, folder)
    POLICIES.get(arguments.policy)  # fails before the launcher does
    pricing_begins()
    if not arguments.warm_start:
        pricing = None if arguments.no_archive else _with_archive(space, folder, arguments)
        return space, folder, pricing
    from workflows.cli.predict import calibrated

    otherwise = "--warm-start has nothing to learn from"
    return space, folder, calibrated(space, arguments.warm_start, otherwise)[0]


def _with_archive(
    space: SearchSpace, folder: analysis.RunFolder, arguments: Namespace
) -> analysis.Pricing | None:
    """Prices that may learn from runs in the archive; None if no run fits."""
    try:
        where = archive_folder()
        if not where.exists() or not [*where.iterdir()]:
            return None
    except (UsageError, OSError) as error:
        print(f"archive: it is left out: {error}", file=sys.stderr)
        return None
    from workflows.replay.archive import name_of, offer

    if pricing := analysis.Pricing.of(space):
        own = ""
        if folder.started:
            with suppress(analysis.RunError):  # which the run's opening reports
                own = name_of(analysis.read_run(folder.path), space)
        for line in offer(pricing, where, own, arguments.launcher == "simulate"):
            print(line, file=sys.stderr)  # standard output may be a job's script
    return pricing if pricing and pricing.offered else None


def _space(arguments: Namespace) -> SearchSpace:
    """The space with the given budget, which the run's frozen space then has, too."""
    space = search_spaces.load_space(arguments.space)
    simulated = arguments.launcher == "simulate"
    if arguments.simulate and not simulated:
        raise UsageError("--simulate goes with --launcher simulate")
    given = {name: getattr(arguments, name) for name in ("trials", "explore", "probes")}
    if given := {key: value for key, value in given.items() if value is not None}:
        space = replace(space, budget=space.budget.model_copy(update=given))
    return space


def _with_the_runs_share(space: SearchSpace, folder: analysis.RunFolder) -> SearchSpace:
    """The space with the run's share of explorations, or its own, whose change is printed.

    The run's share may come from an option of its first command, which the user's file lacks.
    """
    frozen = folder.readable_space()
    if frozen is None:  # no run yet; or a damaged one, which its opening reports
        return space
    before = frozen.budget.explore
    if "explore" not in space.budget.model_fields_set:
        return replace(space, budget=space.budget.model_copy(update={"explore": before}))
    if (now := space.budget.explore) != before:
        print(f"explorations: {now:.3g} of the trials from now on, {before:.3g} so far")
    return space


def run_directory(arguments: Namespace, space: SearchSpace) -> Path:
    """``--run-dir``, or a frozen space's folder, or ``runs/NAME`` or ``runs/NAME-simulated``."""
    if arguments.run_dir:
        return Path(arguments.run_dir)
    here = Path(arguments.space).parent
    if Path(arguments.space).is_file() and analysis.RunFolder(here).started:
        return here
    simulated = arguments.launcher == "simulate"
    return Path("runs") / (f"{space.name}-simulated" if simulated else space.name)


def refuse_short_job(space: SearchSpace, time: str) -> None:
    """Raise UsageError if a job of this time limit would start no trial."""
    from workflows.submission import least_s, time_limit

    if slurm.BatchJob.time_limit_s(time_limit(time)) < (needed_s := least_s(space)):
        raise UsageError(
            f"--time {time}: no trial would start, as one may take trial.timeout, "
            f"{duration(space.trial.timeout_s)}: ask for at least {math.ceil(needed_s / 60)}m, "
            "better for that of several trials, or lower the timeout"
        )


def refuse_second_job(folder: analysis.RunFolder) -> None:
    """Raise UsageError if somebody searches in this folder, or a job waits to."""
    if job := slurm.BatchJob.of(folder.path):
        raise UsageError(
            f"job {job.id} ({job.state}) searches in {folder.path}, with the space as it was "
            f"submitted ({folder.space_file.name} there): wait for its end, or `scancel {job.id}` "
            "and submit again; for a space that has changed choose another --run-dir"
        )
    if driver := folder.driver:
        raise UsageError(
            f"{folder.path} is being searched by another meshtune ({driver}): submit when it has "
            "ended, or choose another --run-dir"
        )


def policy_options(policy: str, warm_start: Sequence[Path], no_archive: bool) -> list[str]:
    """The options that say how configurations are chosen."""
    options = [] if policy == "meshtune" else ["--policy", policy]
    options += ["--no-archive"] if no_archive else []
    return [*options, "--warm-start", *map(str, warm_start)] if warm_start else options


def resume_flags(arguments: Namespace) -> str:
    given = {
        "--launcher": arguments.launcher,
        "--simulate": arguments.simulate,
        "--hostfile": arguments.hostfile,
        "--exclude": arguments.exclude,
        "--site": "" if arguments.site == "generic" else arguments.site,
    }
    words = [word for name, value in given.items() if value for word in (name, str(value))]
    words += [] if arguments.report else ["--no-report"]
    words += policy_options(arguments.policy, arguments.warm_start, arguments.no_archive)
    return "".join(f" {quote(word)}" for word in words)
