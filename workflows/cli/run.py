"""``meshtune try``, ``status``, ``export``, ``train`` and ``repair``: what becomes of a run."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from workflows.cli.arguments import (
    Commands,
    add_launcher,
    add_space,
    check_site,
    command,
    folder,
    path,
    positive,
)
from workflows.cli.json_output import add_json, of_run, print_json

if TYPE_CHECKING:
    from analysis import Run


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(
        commands,
        "try",
        try_out,
        "Run one trial of a space, and show its command and what was read from its output.",
    )
    add_space(parser)
    parser.add_argument(
        "--config",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="parameters; default: what the cost model expects to be the best",
    )
    add_launcher(parser)
    parser.add_argument(
        "--out", type=folder, default=Path("try"), metavar="DIR", help="default: try"
    )

    parser = command(commands, "status", status, "Show a run's progress.")
    parser.add_argument("run", type=folder, metavar="RUN")
    add_json(parser)

    parser = command(
        commands,
        "export",
        export,
        "Write the best configuration as a well-known trainer's options or files.",
    )
    parser.add_argument("run", type=path, metavar="RUN|BEST.yaml")
    parser.add_argument(
        "--to", required=True, metavar="NAME", help="the trainer: megatron-lm, torchtitan ..."
    )
    parser.add_argument(
        "--out", type=folder, metavar="DIR", help="write files there; default: print them"
    )

    parser = command(commands, "train", train, "Train with the best configuration of a search.")
    parser.add_argument("best", type=path, metavar="BEST.yaml", help="from the run's report")
    add_launcher(parser)
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="steps after the warm-up; default: those of the trials",
    )
    parser.add_argument(
        "--out", type=folder, default=Path("train"), metavar="DIR", help="default: train"
    )
    parser.add_argument(
        "--save",
        type=folder,
        metavar="DIR",
        help="folder for checkpoints; resume from its latest one",
    )
    parser.add_argument(
        "--save-interval",
        type=positive,
        metavar="N",
        help="steps between checkpoints; default: only at the end",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command; start nothing")

    text = "Repair a damaged journal: keep its intact lines, and list what was left out."
    parser = command(commands, "repair", repair, text)
    parser.add_argument("run", type=folder, metavar="RUN")


def try_out(arguments: Namespace) -> int:
    """Run one trial and print all that was done and read for it."""
    from foundation.messages import printable
    from search_spaces import load_space
    from slurm import LauncherOptions, make_launcher
    from workflows.launching import launcher_name, refuse_too_many_ranks
    from workflows.try_out import choose, try_out, values_of

    space = load_space(arguments.space)
    given = values_of(space, arguments.config)
    name = arguments.launcher
    config = choose(space, given, space.widths[-1])
    needed = space.num_nodes(config)
    refuse_too_many_ranks(Path(space.file), name, needed * space.ranks_per_node)
    options = LauncherOptions(needed, arguments.site, arguments.hostfile)
    with closing(make_launcher(launcher_name(name), options)) as launcher:
        lines = try_out(space, config, launcher, arguments.out)
        while True:
            try:
                print(printable(next(lines)), flush=True)
            except StopIteration as end:
                return 0 if end.value else 1


def status(arguments: Namespace) -> int:
    """Print a run's progress; works while it runs, and after."""
    from analysis import RunFolder, read_run
    from foundation.messages import printable
    from slurm import SCRIPT_NAME
    from workflows.search.budget import Budget
    from workflows.search.progress import summary

    if (arguments.run / SCRIPT_NAME).exists() and not RunFolder(arguments.run).started:
        waiting = "submitted, not started yet"
        if arguments.json:
            return print_json({"run": str(arguments.run), "state": waiting, "running": False})
        print(f"{waiting}; squeue shows the job, and its log will be here")
        return 0
    run = read_run(arguments.run)
    space = RunFolder(arguments.run).frozen_space()
    driver = RunFolder(arguments.run).driver
    state = state_of(run, driver)
    # The machine's clock may have been set back since the driver began.
    now = max(run.last_t, time.time()) if driver and run.launcher != "simulate" else run.last_t
    if arguments.json:
        return print_json(of_run(run, Budget.of(space), now, state, bool(driver)))
    rows = summary(run, Budget.of(space), now, alive=bool(driver))
    for label, text in [("run", run.space), ("state", state), *rows]:
        print(printable(f"{label:12s}{text}"))
    return 0


def state_of(run: Run, driver: str | None) -> str:
    """What has become of a run.

    Args:
        run: as it is.
        driver: that is running it; None or empty if there is none.
    """
    from workflows.search.stopping import CONTINUE, FAILED, INTERRUPTED

    if driver:
        return f"running ({driver})"
    if not run.opened_t:
        return "no search has begun here yet"
    if run.closed is None:
        return f"killed; {_resumption(run)}"
    if run.closed_code in (CONTINUE, INTERRUPTED):
        return f"{run.closed}; {_resumption(run)}"
    return f"failed: {run.closed}" if run.closed_code == FAILED else run.closed


def _resumption(run: Run) -> str:
    """How a run goes on."""
    from slurm import SCRIPT_NAME
    from workflows.search.study import LAUNCHER

    if run.launcher == LAUNCHER:
        return "the program that asked for its trials resumes it"
    launcher = "" if run.launcher in ("", "local", "srun") else f" --launcher {run.launcher}"
    by_hand = f"`meshtune search {quote(str(run.folder.space_file))}{launcher}` resumes it"
    if (run.directory / SCRIPT_NAME).exists():
        return f"its job goes on if squeue still shows it, else {by_hand}"
    return by_hand


def export(arguments: Namespace) -> int:
    """Print, or write, what another trainer is given for a run's best configuration."""
    from foundation.messages import shown
    from workflows.export import of_best, text, write

    found, what = of_best(arguments.run, arguments.to)
    if arguments.out is None:
        print(*text(found, what), sep="\n")
        return 0
    print(f"{shown(arguments.out)}: {', '.join(write(found, what, arguments.out))}")
    for line in found.unmapped:
        print(f"not told: {line}")
    return 0


def train(arguments: Namespace) -> int:
    """Train with a report's best.yaml and print the metrics."""
    from analysis import Best, RunFolder
    from foundation.messages import shown
    from slurm import LauncherOptions, make_launcher
    from workflows.cli.errors import UsageError
    from workflows.launching import launcher_name, refuse_too_many_ranks
    from workflows.train import Longer, dry_run, train_best

    if arguments.best.is_dir():
        file = shown(RunFolder(arguments.best).report / "best.yaml")
        raise UsageError(
            f"{shown(arguments.best)} is a folder: of a run's, {file} is what to train with; "
            "`meshtune report RUN` writes it"
        )
    check_site(arguments)
    best = Best.read(arguments.best)
    chosen = launcher_name(arguments.launcher)
    refuse_too_many_ranks(best.path, arguments.launcher, best.num_nodes * best.ranks_per_node)
    if arguments.save_interval and arguments.save is None:
        raise UsageError("--save-interval needs --save")
    longer = Longer(arguments.steps, arguments.save, arguments.save_interval)
    options = LauncherOptions(best.num_nodes, arguments.site, arguments.hostfile)
    with closing(make_launcher(chosen, options)) as launcher:
        if arguments.dry_run:
            print(dry_run(best, launcher, arguments.out, longer))
            return 0
        return train_best(best, launcher, arguments.out, longer)


def repair(arguments: Namespace) -> int:
    """Repair a run's journal, and say what was left out."""
    from analysis import repair_run
    from foundation.quantities import counted

    done = repair_run(arguments.run)
    for number, text in done.notes:
        print(f"line {number}: {text}")
    lines = counted(done.lines, "line")
    if done.backup is None:
        print(f"the journal is sound: {lines}")
        return 0
    trials = done.run.trials.values()
    ended = sum(trial.ended for trial in trials)
    print(f"the journal now has {lines}: {ended} of {counted(len(trials), 'trial')} have ended")
    print(f"as it was: {done.backup}")
    print(_resumption(done.run))
    return 0
