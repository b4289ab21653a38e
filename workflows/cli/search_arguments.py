"""A search from its arguments: its space, its folder, the runs that it learns from."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from analysis import RunError, RunFolder, read_run
from foundation.quantities import duration
from search_spaces import SearchSpace, SpaceError, load_space
from slurm import BatchJob
from workflows.cli.arguments import UsageError, archive_folder
from workflows.optimizer.registry import POLICIES

if TYPE_CHECKING:
    from analysis import Pricing  # scipy: half a second


def asked(
    arguments: Namespace, pricing_begins: Callable[[], object] = lambda: None
) -> tuple[SearchSpace, RunFolder, Pricing | None]:
    """The space to search, the run's folder, and prices learnt from earlier runs if any are given.

    Raises UsageError, SpaceError or RegistryError if the arguments are wrong.
    """
    space = _space(arguments)
    folder = RunFolder(run_directory(arguments, space))
    space = _with_the_runs_share(space, folder)
    POLICIES.get(arguments.policy)  # an error now: a launcher may have complaints of its own
    pricing_begins()
    if not arguments.warm_start:
        pricing = None if arguments.no_archive else _with_archive(space, folder, arguments)
        return space, folder, pricing
    from workflows.cli.predict import calibrated

    otherwise = "--warm-start has nothing to learn from"
    return space, folder, calibrated(space, arguments.warm_start, otherwise)[0]


def _with_archive(space: SearchSpace, folder: RunFolder, arguments: Namespace) -> Pricing | None:
    """Prices to which runs in the archive are offered; None where nothing fits."""
    try:
        where = archive_folder()
        if not where.exists() or not [*where.iterdir()]:
            return None
    except (UsageError, OSError) as error:
        print(f"archive: it is left out: {error}", file=sys.stderr)
        return None
    from analysis import Pricing
    from workflows.replay.archive import name_of, offer

    if pricing := Pricing.of(space):
        own = ""
        if folder.started:
            with suppress(RunError):  # which the run's opening reports
                own = name_of(read_run(folder.path), space)
        for line in offer(pricing, where, own, arguments.launcher == "simulate"):
            print(line, file=sys.stderr)  # what is printed may be a job's script
    return pricing if pricing and pricing.offered else None


def _space(arguments: Namespace) -> SearchSpace:
    """The space, with the budget that was asked for: it is frozen with the run."""
    space = load_space(arguments.space)
    simulated = arguments.launcher == "simulate"
    if arguments.simulate and not simulated:
        raise UsageError("--simulate goes with --launcher simulate")
    given = {name: getattr(arguments, name) for name in ("trials", "explore", "probes")}
    if given := {key: value for key, value in given.items() if value is not None}:
        # So that status and a resumed search know of it.
        space = replace(space, budget=space.budget.model_copy(update=given))
    return space


def _with_the_runs_share(space: SearchSpace, folder: RunFolder) -> SearchSpace:
    """The space with the share of explorations that the run has; another that is asked is printed.

    The run's may come from an option of its first command, which no file of the user's repeats.
    """
    try:
        before = load_space(folder.space_file, frozen=True).budget.explore
    except SpaceError:  # no run yet; or one whose space is damaged, which its opening reports
        return space
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
    if Path(arguments.space).is_file() and RunFolder(here).started:
        return here
    simulated = arguments.launcher == "simulate"
    return Path("runs") / (f"{space.name}-simulated" if simulated else space.name)


def refuse_short_job(space: SearchSpace, time: str) -> None:
    """Raise UsageError if a job of this time limit would start no trial."""
    from workflows.submission import least_s, time_limit

    if BatchJob.time_limit_s(time_limit(time)) < (needed_s := least_s(space)):
        raise UsageError(
            f"--time {time}: no trial would start, as one may take trial.timeout, "
            f"{duration(space.trial.timeout_s)}: ask for at least {math.ceil(needed_s / 60)}m, "
            "better for that of several trials, or lower the timeout"
        )


def refuse_second_job(folder: RunFolder) -> None:
    """Raise UsageError if somebody searches in this folder, or a job waits to."""
    if job := BatchJob.of(folder.path):
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
