"""One session of a run: from a space and a launcher to an ending and a report."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import IO, cast

from rich.console import Console
from rich.text import Text

from analysis import (
    Identity,
    Journal,
    Pricing,
    Run,
    RunFolder,
    Trial,
    front_lines,
    read_run,
    verdict_lines,
)
from foundation.messages import printable
from foundation.quantities import config_text, counted
from search_spaces import SearchSpace
from slurm import Launcher, Lease, NodePool, TooFewNodesError
from workflows.optimizer.policy import Policy
from workflows.optimizer.registry import DEFAULT, POLICIES, make_policy
from workflows.search.budget import Budget
from workflows.search.driver import Driver, Listener
from workflows.search.progress import Progress
from workflows.search.reporting import report_line
from workflows.search.screen import Screen
from workflows.search.stopping import CONTINUE, INTERRUPTED, Ending
from workflows.search.trials import TrialFactory, data_prefix, make_data

DRY_RUN_TRIALS = 3
NO_IDENTITY = "00000000"  # not yet, or simulated


def run_session(
    space: SearchSpace,
    folder: RunFolder,
    launcher: Launcher,
    seed: int | None,
    budget: Budget,
    flags: str = "",
    policy: str = DEFAULT,
    pricing: Pricing | None = None,
    report: bool = True,
) -> int:
    """Search until an ending, write the report if nothing is left, and return the exit code.

    A person watches: progress goes to the terminal, and Ctrl-C stops the search cleanly.

    Args:
        space, folder, launcher, seed, budget, policy, pricing: see :func:`open_driver`.
        flags: what the command that resumes the run needs beside the space.
        report: whether one is written.
    """
    screen = Screen(sys.stdout)
    console = Console(file=cast(IO[str], screen))
    # Slurm's warning may come while there is no driver any more.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    progress = Progress(console)
    with ExitStack() as stack:
        with console.status(f"opening {folder.path}"):
            driver = stack.enter_context(
                open_driver(space, folder, launcher, seed, budget, progress, policy, pricing)
            )
        with progress, stop_on_signals(driver, progress):
            ending = driver.run()
        console.print(Text(printable(_last_words(driver, ending, flags))), soft_wrap=True)
    if report:
        with console.status("writing the report"):
            line = report_line(folder, launcher, ending)
        console.print(Text(printable(line)), soft_wrap=True)
    screen.finish()
    return ending.code


@contextmanager
def open_driver(
    space: SearchSpace,
    folder: RunFolder,
    launcher: Launcher,
    seed: int | None,
    budget: Budget,
    listen: Listener,
    policy: str = DEFAULT,
    pricing: Pricing | None = None,
) -> Iterator[Driver]:
    """The driver of a run, which is held as long as the context is.

    Args:
        space: what is searched.
        folder: where; a run that is there already is resumed.
        launcher: gives trials their processes.
        seed: None: the run's own, or 0.
        budget: of the whole run.
        listen: see ``Driver``.
        policy: the name of what chooses; see ``workflows.optimizer.registry``.
        pricing: in place of the space's own prices.

    Raises:
        RegistryError: if there is no such policy.
        TooFewNodesError: if every configuration needs more nodes than the launcher has.
        FingerprintError: if the folder holds a run of another space.
        RunBusyError: if another process drives this run.
    """
    POLICIES.get(policy)  # an error now, while nothing is made
    _refuse_narrow_launcher(space, folder, launcher, policy, pricing)
    data = _data(space, folder, launcher)
    folder.prepare(space)
    journal = Journal(folder.path, launcher.clock.time, sync=not launcher.simulated)
    try:
        folder.create(space)  # only now is the run ours: another's budget stays
        if data and not launcher.simulated:
            make_data(data)
        if seed is None:
            seed = journal.run.seed
        # A simulated run shares its cluster with nobody, and equal seeds give equal journals.
        identity = None if launcher.simulated else Identity.of(folder.path, journal.run.identity)
        yield Driver(
            space=space,
            folder=folder,
            journal=journal,
            launcher=launcher,
            policy=make_policy(space, seed, policy, pricing=pricing),
            factory=TrialFactory(space, folder, _run_id(identity), data),
            budget=budget,
            seed=seed,
            listen=listen,
            identity=identity,
        )
    finally:
        journal.close()


def run_search(
    space: SearchSpace,
    folder: RunFolder,
    launcher: Launcher,
    seed: int | None = None,
    policy: str = DEFAULT,
    listen: Listener = lambda *_: None,
) -> Run:
    """Search until an ending, and return the run; prints nothing and leaves signals alone.

    Args:
        space, folder, launcher, seed, policy, listen: see :func:`open_driver`.
    """
    with open_driver(space, folder, launcher, seed, Budget.of(space), listen, policy) as driver:
        driver.run()
        return driver.state


def dry_run(
    space: SearchSpace,
    folder: RunFolder,
    launcher: Launcher,
    seed: int | None,
    policy: str = DEFAULT,
    pricing: Pricing | None = None,
) -> Iterator[str]:
    """The exact commands of the next trials; starts and writes nothing.

    Raises:
        TooFewNodesError: if every configuration that is left needs more nodes than there are.
    """
    run = read_run(folder.path) if folder.started else Run(folder.path)
    data = _data(space, folder, launcher)
    factory = TrialFactory(space, folder, _run_id(run.identity), data)
    chosen = make_policy(space, run.seed if seed is None else seed, policy, pricing=pricing)
    pool = NodePool(launcher.nodes())
    nodes = counted(pool.size, "node")
    yield f"# {space.name}: the first trials on {nodes} ({launcher.name})"
    for count in range(DRY_RUN_TRIALS):
        proposal = chosen.propose(run, pool.size)
        if proposal is None:
            if count == 0:
                _refuse_too_few_nodes(space, chosen, run, launcher)
            yield f"# no further configuration is left for {nodes}"
            break
        number = max(run.trials, default=0) + 1
        run.trials[number] = Trial(number, proposal.config, time.time())
        spec = factory.spec(number, 1, proposal.config)
        lease = Lease(str(number), tuple(pool.nodes[: spec.num_nodes]))
        yield f"# trial {number}: {config_text(proposal.config)}"
        yield shlex.join(launcher.command(spec, lease))


def _refuse_narrow_launcher(
    space: SearchSpace,
    folder: RunFolder,
    launcher: Launcher,
    policy: str,
    pricing: Pricing | None,
) -> None:
    """Raise if no trial of a new run could ever start; one that has begun may wait for nodes."""
    if folder.started and read_run(folder.path).trials:
        return
    nodes = len(launcher.nodes())
    if space.widths[-1] <= nodes:
        return
    chosen = make_policy(space, 0, policy, pricing=pricing)  # its own: a proposal leaves traces
    run = Run(folder.path)
    if chosen.propose(run, nodes) is None:
        _refuse_too_few_nodes(space, chosen, run, launcher)


def _refuse_too_few_nodes(space: SearchSpace, policy: Policy, run: Run, launcher: Launcher) -> None:
    """Raise if there are configurations to propose, but only for more nodes than there are."""
    if policy.propose(run, sys.maxsize) is None:
        return
    widths = space.widths
    widest = len(widths) - 1
    at = bisect_left(widths, True, 0, widest, key=lambda n: policy.propose(run, n) is not None)
    left = " that is left" if run.trials else ""
    raise TooFewNodesError(
        f"the narrowest configuration{left} needs {counted(widths[at], 'node')}, the launcher "
        f"{launcher.name} has {len(launcher.nodes())}: give it more, or allow fewer (num_nodes)"
    )


def _data(space: SearchSpace, folder: RunFolder, launcher: Launcher) -> str | None:
    """Where the built-in trainer's tokens are; a simulated cluster need not have them."""
    if launcher.simulated and space.trainer.builtin:
        return space.trainer.builtin.data
    return data_prefix(space, folder.path)


def _run_id(identity: Identity | None) -> str:
    """Names the run's steps and processes, as no other run's are named; stays when it resumes."""
    return f"meshtune-{identity.id if identity else NO_IDENTITY}"


@contextmanager
def stop_on_signals(driver: Driver, progress: Progress) -> Iterator[None]:
    """Ctrl-C or TERM: stop cleanly; a second one: quit now. USR1 (the allocation ends): drain."""
    asked = False  # the driver may be stopping for a reason of its own

    def say(text: str) -> None:
        with suppress(RuntimeError):  # in the middle of another line, which output does not allow
            progress.say(text)

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        code = INTERRUPTED if number == signal.SIGINT else CONTINUE
        driver.stop(Ending(f"stopped by {signal.Signals(number).name}", code))
        say("stopping: ending the running trials (press Ctrl-C again to quit now)")

    def drain(_: int, __: FrameType | None) -> None:
        driver.drain(Ending("the allocation ends", CONTINUE))
        say("the allocation ends soon: no further trial is started")

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGUSR1: drain}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_words(driver: Driver, ending: Ending, flags: str) -> str:
    best = driver.state.best
    words = f"ended: {ending.reason}"
    if best:
        words += (
            f"\nbest: {best.objective:.5g} {driver.state.objective_key}, trial {best.number}: "
            f"{config_text(best.config)}"
        )
    for label, text in front_lines(driver.state):
        words += f"\n{label + ':' if label else ' '} {text}"
    asked = driver.space.finalists.confidence
    for label, text in verdict_lines(driver.state, asked):
        words += f"\n{label}: {text}"
    if ending.code in (CONTINUE, INTERRUPTED):
        space_file = shlex.quote(str(driver.folder.space_file))
        words += f"\nresume with: meshtune search {space_file}{flags}"
    return words
