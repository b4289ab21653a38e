# The facade: what __init__.py exports, each from its module when it is first used.
from . import minicluster as minicluster, processes as processes
from .clock import Clock as Clock
from .forked_rank import parsed_python as parsed_python
from .launcher import (
    LAUNCHERS as LAUNCHERS,
    AllocationGoneError as AllocationGoneError,
    AllocationState as AllocationState,
    Launcher as Launcher,
    LauncherError as LauncherError,
    LauncherOptions as LauncherOptions,
    TooFewNodesError as TooFewNodesError,
    make_launcher as make_launcher,
)
from .outcome.classify import Outcome as Outcome
from .outcome.evidence import clear_attempt as clear_attempt, gather as gather
from .outcome.kinds import BLAMELESS as BLAMELESS, Kind as Kind
from .outcome.step_log import (
    EarlyStop as EarlyStop,
    GrowingLog as GrowingLog,
    StepLog as StepLog,
    StepReport as StepReport,
    StopRule as StopRule,
)
from .outcome.texts import LauncherTexts as LauncherTexts
from .outcome.watch import watch as watch
from .pool import NodePool as NodePool
from .simulated.launcher import SimulatedLauncher as SimulatedLauncher
from .simulated.trial import Price as Price, SimulatedCluster as SimulatedCluster
from .srun.batch import BatchError as BatchError, BatchJob as BatchJob, batch_script as batch_script
from .srun.shell import NoAnswerError as NoAnswerError
from .srun.site import Site as Site
from .trial import Kept as Kept, Lease as Lease, TrialSpec as TrialSpec
