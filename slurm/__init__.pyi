# The facade: what __init__.py exports, each from its module when it is first used.
from . import minicluster, processes
from .clock import Clock
from .forked_rank import parsed_python
from .launcher import (
    AllocationGoneError,
    AllocationState,
    Launcher,
    LauncherError,
    LauncherOptions,
    TooFewNodesError,
)
from .outcome.classify import Outcome, classify, read_result
from .outcome.evidence import clear_attempt, gather
from .outcome.kinds import BLAMELESS, FAILURES, Kind
from .outcome.result import kept_result
from .outcome.step_log import EarlyStop, StepReport, StopRule, reported_steps, result_of_steps
from .outcome.texts import LauncherTexts
from .outcome.watch import watch
from .pool import NodePool
from .registry import launcher_names, make_launcher
from .simulated.cluster import SimulatedCluster
from .simulated.launcher import SimulatedLauncher
from .simulated.trial import Price
from .srun.batch import SCRIPT_NAME, BatchError, batch_script, job_of, submit
from .srun.shell import NoAnswerError
from .srun.site import load_site, shipped_sites
from .trial import Kept, Lease, ResultSource, TrialSpec

__all__ = [
    "BLAMELESS",
    "FAILURES",
    "SCRIPT_NAME",
    "AllocationGoneError",
    "AllocationState",
    "BatchError",
    "Clock",
    "EarlyStop",
    "Kept",
    "Kind",
    "Launcher",
    "LauncherError",
    "LauncherOptions",
    "LauncherTexts",
    "Lease",
    "NoAnswerError",
    "NodePool",
    "Outcome",
    "Price",
    "ResultSource",
    "SimulatedCluster",
    "SimulatedLauncher",
    "StepReport",
    "StopRule",
    "TooFewNodesError",
    "TrialSpec",
    "batch_script",
    "classify",
    "clear_attempt",
    "gather",
    "job_of",
    "kept_result",
    "launcher_names",
    "load_site",
    "make_launcher",
    "minicluster",
    "parsed_python",
    "processes",
    "read_result",
    "reported_steps",
    "result_of_steps",
    "shipped_sites",
    "submit",
    "watch",
]
