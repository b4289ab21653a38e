# The facade: what __init__.py exports, each from its module when it is first used.
from . import minicluster, processes
from .clock import Clock
from .forked_rank import parsed_python
from .launcher import (
    LAUNCHERS,
    AllocationGoneError,
    AllocationState,
    Launcher,
    LauncherError,
    LauncherOptions,
    TooFewNodesError,
    make_launcher,
)
from .outcome.classify import Outcome
from .outcome.evidence import clear_attempt, gather
from .outcome.kinds import BLAMELESS, Kind
from .outcome.step_log import EarlyStop, StepLog, StepReport, StopRule
from .outcome.texts import LauncherTexts
from .outcome.watch import watch
from .pool import NodePool
from .simulated.launcher import SimulatedLauncher
from .simulated.trial import Price, SimulatedCluster
from .srun.batch import BatchError, BatchJob, batch_script
from .srun.shell import NoAnswerError
from .srun.site import Site
from .trial import Kept, Lease, ResultSource, TrialSpec

__all__ = [
    "BLAMELESS",
    "LAUNCHERS",
    "AllocationGoneError",
    "AllocationState",
    "BatchError",
    "BatchJob",
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
    "Site",
    "StepLog",
    "StepReport",
    "StopRule",
    "TooFewNodesError",
    "TrialSpec",
    "batch_script",
    "clear_attempt",
    "gather",
    "make_launcher",
    "minicluster",
    "parsed_python",
    "processes",
    "watch",
]
