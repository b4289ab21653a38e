"""One session of a run: from a space and a launcher to an ending and a report."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from analysis import Identity, Journal, Pricing, Run, RunFolder, Trial, read_run, verdict_lines
from foundation.messages import printable
from foundation.quantities import config_text, counted
from search_spaces import SearchSpace
from slurm import Launcher, Lease, NodePool, TooFewNodesError
from trainer.plan.limits import ConfigError
from workflows.optimizer.policy import Policy
from workflows.optimizer.registry import DEFAULT, POLICIES, make_policy
from workflows.search.budget import Budget
from workflows.search.driver import Driver, Listener
from workflows.search.progress import Progress, Screen
from workflows.search.reporting import ending_signals, handling, report_line
from workflows.search.stopping import CONTINUE, INTERRUPTED, Ending
from workflows.search.trials import TrialFactory, data_prefix, make_data

DRY_RUN_TRIALS = 3
NO_IDENTITY = "00000000"  # of a run that is simulated or not begun


@dataclass(frozen=True)
class Search:
    space: SearchSpace  # what is searched; its budget is that of the whole run
    folder: RunFolder  # of the run; one that is there already is resumed
    launcher: Launcher  # starts the trials' processes
    seed: int | None = None  # default: the run's own, or 0
    policy: str = DEFAULT  # its name in ``workflows.optimizer.registry``
    pricing: Pricing | None = None  # replaces the space's own prices
    budget: Budget | None = None  # default: the space's
    only: Sequence[Mapping[str, Any]] | None = None  # the configurations to try; default: all

    def make_policy(self, seed: int) -> Policy:
        pricing = self.pricing
        if self.folder.probes.started:
            pricing = pricing or Pricing.of(self.space)
            pricing = pricing and pricing.probed(self.folder)
        return make_policy(self.space, seed, self.policy, pricing=pricing, only=self.only)

    def make_factory(self, identity: Identity | None) -> TrialFactory:
        """A trial factory that gives steps and processes names that no other run has."""
        run_id = f"meshtune-{identity.id if identity else NO_IDENTITY}"
        return TrialFactory(self.space, self.folder, run_id, self.data)

    @property
    def data(self) -> str | None:
        """Prefix of the built-in trainer's token file; a simulated cluster needs no such file."""
        if self.launcher.simulated and self.space.trainer.builtin:
            return self.space.trainer.builtin.data
        return data_prefix(self.space, self.folder.path)

    def run(self, listen: Listener = lambda *_: None) -> Run:
        """Search until an ending, and return the run; prints nothing and handles no signals."""
        with open_driver(self, listen) as driver:
            driver.run()
            return driver.state


def run_session(search: Search, flags: str = "", report: bool = True) -> int:
    """Search until an ending, write the report if nothing is left, and return the exit code.

    ``flags`` are the options of the command that resumes the run, besides the space.
    """
    screen = Screen(sys.stdout)
    console = Console(file=cast(IO[str], screen))
    # Slurm's warning may come when the driver has ended.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    progress = Progress(console)
    with ExitStack() as stack:
        with console.status(f"opening {search.folder.path}"):
            driver = stack.enter_context(open_driver(search, progress))
        with progress, stop_on_signals(driver, progress):
            ending = driver.run()
        text = f"ended: {ending.reason}" if search.only else _summary(driver, ending, flags)
        console.print(Text(printable(text)), soft_wrap=True)
    if report:
        with console.status("writing the report"):
            line = report_line(search.folder, search.launcher, ending)
        console.print(Text(printable(line)), soft_wrap=True)
    screen.finish()
    return ending.code


@contextmanager
def open_driver(search: Search, listen: Listener) -> Iterator[Driver]:
    """The driver of a run; the run is locked within the context.

    Raises:
        RegistryError: if there is no such policy.
        TooFewNodesError: if every configuration needs more nodes than the launcher has.
        FingerprintError: if the folder holds a run of another space.
        RunBusyError: if another process drives this run.
        ConfigError: if this machine lacks the trainer's program.
    """
    space, folder, launcher = search.space, search.folder, search.launcher
    POLICIES.get(search.policy)  # fails before anything is written
    _refuse_container(search)
    _refuse_narrow_launcher(search)
    _refuse_missing_program(search)
    data = search.data
    folder.prepare(space)
    journal = Journal(folder.path, launcher.clock.time, sync=not launcher.simulated)
    try:
        journal.run.check_configurations(space)
        folder.create(space)  # only now, so that another run's budget stays
        if data and not launcher.simulated:
            make_data(data)
        seed = journal.run.seed if search.seed is None else search.seed
        budget = search.budget or Budget.of(space)
        if folder.probes.started:
            budget = budget.after(read_run(folder.probes.path))
        # A simulated run shares its cluster with nobody, and equal seeds give equal journals.
        identity = None if launcher.simulated else Identity.of(folder.path, journal.run.identity)
        yield Driver(
            space=space,
            folder=folder,
            journal=journal,
            launcher=launcher,
            policy=search.make_policy(seed),
            factory=search.make_factory(identity),
            budget=budget,
            seed=seed,
            listen=listen,
            identity=identity,
        )
    finally:
        journal.close()


def dry_run(search: Search) -> Iterator[str]:
    """The cost of the search and the exact commands of its next trials; starts and writes nothing.

    Raises TooFewNodesError if every configuration that is left needs more nodes than there are.
    """
    from workflows.estimate import Estimate  # scipy

    folder, launcher = search.folder, search.launcher
    _refuse_container(search)
    run = read_run(folder.path) if folder.started else Run(folder.path)
    factory = search.make_factory(run.identity)
    policy = search.make_policy(run.seed if search.seed is None else search.seed)
    pool = NodePool(launcher.nodes())
    nodes = counted(pool.size, "node")
    yield f"# {search.space.name}: the first trials on {nodes} ({launcher.name})"
    yield f"# {Estimate.of(search.space).text(pool.size)}"
    for count in range(DRY_RUN_TRIALS):
        proposal = policy.propose(run, pool.size)
        if proposal is None:
            if not count:
                _refuse_too_few_nodes(search, policy, run)
            yield f"# no further configuration is left for {nodes}"
            break
        number = max(run.trials, default=0) + 1
        run.trials[number] = Trial(number, proposal.config, time.time())
        spec = factory.spec(number, 1, proposal.config)
        lease = Lease(str(number), tuple(pool.nodes[: spec.num_nodes]))
        yield f"# trial {number}: {config_text(proposal.config)}"
        yield shlex.join(launcher.command(spec, lease))


def _refuse_narrow_launcher(search: Search) -> None:
    """Raise if no trial of a new run could ever start; one that has begun may wait for nodes."""
    folder, nodes = search.folder, len(search.launcher.nodes())
    begun = folder.started and read_run(folder.path).trials
    if begun or search.space.widths[-1] <= nodes:
        return
    policy = search.make_policy(0)  # not the driver's: proposing changes a policy
    run = Run(folder.path)
    if policy.propose(run, nodes) is None:
        _refuse_too_few_nodes(search, policy, run)


def _refuse_container(search: Search) -> None:
    """Raise LauncherError if trials cannot run in their container: every launch would fail."""
    if container := search.space.trainer.container:
        search.launcher.check_container(container)


def _refuse_missing_program(search: Search) -> None:
    """Raise if this machine lacks the trainer's program: every launch would fail and be retried."""
    space = search.space
    program = next(iter(space.trainer.command or ()), None)
    if search.launcher.name != "local" or not isinstance(program, str) or "{" in program:
        return
    if os.sep in program and not (space.workdir or Path(program).is_absolute()):
        return  # in the trial's own folder
    where = space.workdir / program if space.workdir and os.sep in program else program
    path = str(space.trainer.env.get("PATH", os.environ.get("PATH", os.defpath)))
    if shutil.which(where, path=path) is None:
        what = f"there is no program {program!r} on this machine; install it, or give its path"
        if os.sep in program and Path(where).is_file():
            what = f"{program!r} is not executable: chmod +x it, or begin with its interpreter"
        raise ConfigError(f"{space.file}: trainer.command: {what}")


def _refuse_too_few_nodes(search: Search, policy: Policy, run: Run) -> None:
    """Raise if there are configurations to propose, but only for more nodes than there are."""
    if policy.propose(run, sys.maxsize) is None:
        return
    widths = search.space.widths
    widest = len(widths) - 1
    at = bisect_left(widths, True, 0, widest, key=lambda n: policy.propose(run, n) is not None)
    left = " that is left" if run.trials else ""
    raise TooFewNodesError(
        f"the narrowest configuration{left} needs {counted(widths[at], 'node')}, the launcher "
        f"{search.launcher.name} has {len(search.launcher.nodes())}: give it more, or allow fewer "
        "(num_nodes)"
    )


@contextmanager
def stop_on_signals(driver: Driver, progress: Progress) -> Iterator[None]:
    """Ctrl-C, TERM or HUP: stop cleanly; a second one: quit now. USR1 (allocation ends): drain."""
    asked = False  # the driver may be stopping for its own reasons

    def say(text: str) -> None:
        with suppress(RuntimeError):  # in the middle of another line: output is not reentrant
            progress.say(text)

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGHUP:
            return  # a terminal that is closed sends it, and so does its shell
        if asked:
            os._exit(128 + number)
        asked = True
        code = INTERRUPTED if number == signal.SIGINT else CONTINUE
        driver.stop(Ending(f"stopped by {signal.Signals(number).name}", code))
        say("stopping: ending the running trials (press Ctrl-C again to quit now)")

    def drain(_: int, __: FrameType | None) -> None:
        driver.drain(Ending("the allocation ends", CONTINUE))
        say("the allocation ends soon: no further trial is started")

    with handling({**dict.fromkeys(ending_signals(), stop), signal.SIGUSR1: drain}):
        yield


def _summary(driver: Driver, ending: Ending, flags: str) -> str:
    """The lines after a search: why it ended, the best trial, and how to resume it."""
    run = driver.state
    rows = [("ended", ending.reason)]
    if best := run.best:
        words = f"{run.objectives_text(best)}, trial {best.number}"
        rows.append(("best", f"{words}: {config_text(best.config)}"))
    rows += run.front_lines()
    rows += verdict_lines(run, driver.space.finalists.confidence)
    if ending.code in (CONTINUE, INTERRUPTED):
        space_file = shlex.quote(str(driver.folder.space_file))
        rows.append(("resume with", f"meshtune search {space_file}{flags}"))
    return "\n".join(f"{label + ':' if label else ' '} {text}" for label, text in rows)
