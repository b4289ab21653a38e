"""What the arguments of a search come to: its space, its folder, what it starts from."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from analysis import RunFolder, read_run
from search_spaces import SearchSpace, SpaceError, load_space
from slurm import job_of
from workflows.cli.errors import UsageError

if TYPE_CHECKING:
    from analysis import Pricing  # scipy: half a second


def searchable(reference: str) -> SearchSpace:
    space = load_space(reference)
    unknown = space.unsupported()
    if unknown:
        raise UsageError(
            f"{reference}: the built-in trainer has no {', '.join(unknown)}; "
            "search it with a trainer of your own (trainer: {command: [...]}), or remove it"
        )
    return space


def asked_space(arguments: Namespace) -> SearchSpace:
    """The space with the budget that was asked for: it is frozen with the run."""
    space = load_space(arguments.space) if is_simulated(arguments) else searchable(arguments.space)
    asked = {"trials": arguments.trials, "explore": arguments.explore}
    if given := {key: value for key, value in asked.items() if value is not None}:
        # So that status and a continuation know of it.
        space = replace(space, budget=space.budget.model_copy(update=given))
    return space


def resumed(space: SearchSpace, folder: RunFolder) -> SearchSpace:
    """The space with the share of explorations of the run that is there, unless another is asked.

    That share may be an option's of the first command, which no file of the user's has. A change
    is printed.
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
    """``--run-dir``, or the folder that a frozen space lies in, or ``runs/NAME``.

    A simulation never meets the real run of its space: its own is ``runs/NAME-simulated``.
    """
    if arguments.run_dir:
        return Path(arguments.run_dir)
    here = Path(arguments.space).parent
    if Path(arguments.space).is_file() and RunFolder(here).started:
        return here
    simulated = getattr(arguments, "launcher", None) == "simulate"  # `submit` has none
    return Path("runs") / (f"{space.name}-simulated" if simulated else space.name)


def refuse_second_job(folder: RunFolder) -> None:
    """Raise if somebody searches in this folder, or a job waits to: a second one would only fail.

    Raises:
        UsageError: the message says which job, and what to do.
    """
    if job := job_of(folder.path):
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


def is_simulated(arguments: Namespace) -> bool:
    if not hasattr(arguments, "simulate"):  # `submit` has none
        return False
    if arguments.simulate and arguments.launcher != "simulate":
        raise UsageError("--simulate goes with --launcher simulate")
    return bool(arguments.launcher == "simulate")


def warm_prices(space: SearchSpace, runs: list[Path]) -> Pricing | None:
    """Prices of the space by a model that has learnt from earlier runs; None without any."""
    if not runs:
        return None
    from analysis import MissingFactError, NotPricedError, Pricing

    where = str(space.file)
    try:
        pricing = Pricing(space)
        for run in runs:
            where = str(RunFolder(run).space_file)
            other = Pricing(load_space(where))
            pricing.learn(read_run(run), other)
    except (NotPricedError, MissingFactError) as error:
        raise UsageError(f"{where}: {error}: --warm-start has nothing to learn from") from error
    return pricing


def policy_options(policy: str, warm_start: Sequence[Path]) -> list[str]:
    """The options that say how configurations are chosen."""
    options = [] if policy == "meshtune" else ["--policy", policy]
    return [*options, "--warm-start", *map(str, warm_start)] if warm_start else options


def resume_flags(arguments: Namespace) -> str:
    """What the command that resumes a run needs beside the space."""
    flags = "".join(
        f" {quote(word)}" for word in policy_options(arguments.policy, arguments.warm_start)
    )
    if not arguments.report:
        flags = f" --no-report{flags}"
    if arguments.site != "generic":
        flags = f" --site {quote(arguments.site)}{flags}"
    if arguments.hostfile:
        flags = f" --hostfile {quote(str(arguments.hostfile))}{flags}"
    if arguments.simulate:
        flags = f" --simulate {quote(arguments.simulate)}{flags}"
    return f" --launcher {arguments.launcher}{flags}" if arguments.launcher else flags
