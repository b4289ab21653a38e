"""A search from its arguments: its space, its folder, the runs that it learns from."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from analysis import RunFolder
from search_spaces import SearchSpace, SpaceError, load_space
from slurm import BatchJob
from workflows.cli.arguments import UsageError
from workflows.optimizer.registry import POLICIES

if TYPE_CHECKING:
    from analysis import Pricing  # scipy: half a second


def asked(
    arguments: Namespace, pricing_begins: Callable[[], object] = lambda: None
) -> tuple[SearchSpace, RunFolder, Pricing | None]:
    """The space to search, the run's folder, and prices learnt from earlier runs if any are given.

    Raises:
        UsageError, SpaceError, RegistryError: if the arguments are wrong.
    """
    space = _space(arguments)
    folder = RunFolder(run_directory(arguments, space))
    space = _with_the_runs_share(space, folder)
    POLICIES.get(arguments.policy)  # an error now: a launcher may have complaints of its own
    pricing_begins()
    if not arguments.warm_start:
        return space, folder, None
    from workflows.cli.prices import calibrated

    otherwise = "--warm-start has nothing to learn from"
    return space, folder, calibrated(space, arguments.warm_start, otherwise)[0]


def _space(arguments: Namespace) -> SearchSpace:
    """The space, with the budget that was asked for: it is frozen with the run."""
    space = load_space(arguments.space)
    if not is_simulated(arguments) and (unknown := space.unsupported()):
        raise UsageError(
            f"{arguments.space}: the built-in trainer has no {', '.join(unknown)}; "
            "search it with a trainer of your own (trainer: {command: [...]}), or remove it"
        )
    given = {"trials": arguments.trials, "explore": arguments.explore}
    if given := {key: value for key, value in given.items() if value is not None}:
        # So that status and a resumed search know of it.
        space = replace(space, budget=space.budget.model_copy(update=given))
    return space


def _with_the_runs_share(space: SearchSpace, folder: RunFolder) -> SearchSpace:
    """The space with the share of explorations of the run that is there, unless another is asked.

    That share may come from an option of the first command, which no file of the user's repeats.
    A change is printed.
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

    A simulation is kept apart from the real run of its space, in ``runs/NAME-simulated``.
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

    Raises UsageError, which says which job, and what to do.
    """
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


def is_simulated(arguments: Namespace) -> bool:
    """Whether the search is on a simulated cluster; ``submit`` never is."""
    if not hasattr(arguments, "simulate"):
        return False
    if arguments.simulate and arguments.launcher != "simulate":
        raise UsageError("--simulate goes with --launcher simulate")
    return bool(arguments.launcher == "simulate")


def policy_options(policy: str, warm_start: Sequence[Path]) -> list[str]:
    """The options that say how configurations are chosen."""
    options = [] if policy == "meshtune" else ["--policy", policy]
    return [*options, "--warm-start", *map(str, warm_start)] if warm_start else options


def resume_flags(arguments: Namespace) -> str:
    given = {
        "--launcher": arguments.launcher,
        "--simulate": arguments.simulate,
        "--hostfile": arguments.hostfile,
        "--site": "" if arguments.site == "generic" else arguments.site,
    }
    words = [word for name, value in given.items() if value for word in (name, str(value))]
    words += [] if arguments.report else ["--no-report"]
    words += policy_options(arguments.policy, arguments.warm_start)
    return "".join(f" {quote(word)}" for word in words)
