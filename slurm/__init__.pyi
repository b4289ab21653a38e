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
from .logs.patterns import PAUSES, REDUCTIONS, FoundNothingError, LogFormat, LogMetrics, Pattern
from .logs.quantities import QuantityError, check_unit
from .logs.text import cut_lines, read_log
from .outcome.classify import Outcome, classify, read_result
from .outcome.evidence import clear_attempt, gather
from .outcome.kinds import BLAMELESS, FAILURES, Kind, SaidOf
from .outcome.result import kept_result
from .outcome.step_log import EarlyStop, StepLog, StepReport, StopRule, is_number, result_of_steps
from .outcome.texts import LauncherTexts
from .outcome.watch import STDOUT_NAME, watch
from .pool import NodePool
from .python import module_argv
from .registry import launcher_names, make_launcher
from .simulated.cluster import EPOCH, SimulatedCluster
from .simulated.launcher import SimulatedLauncher
from .simulated.trial import Price
from .srun.batch import SCRIPT_NAME, BatchError, batch_script, job_of, submit
from .srun.shell import NoAnswerError, SlurmError
from .srun.site import SiteError, load_site, shipped_sites
from .trial import Kept, Lease, ResultSource, TrialSpec

__all__ = [
    "BLAMELESS",
    "EPOCH",
    "FAILURES",
    "PAUSES",
    "REDUCTIONS",
    "SCRIPT_NAME",
    "STDOUT_NAME",
    "AllocationGoneError",
    "AllocationState",
    "BatchError",
    "Clock",
    "EarlyStop",
    "FoundNothingError",
    "Kept",
    "Kind",
    "Launcher",
    "LauncherError",
    "LauncherOptions",
    "LauncherTexts",
    "Lease",
    "LogFormat",
    "LogMetrics",
    "NoAnswerError",
    "NodePool",
    "Outcome",
    "Pattern",
    "Price",
    "QuantityError",
    "ResultSource",
    "SaidOf",
    "SimulatedCluster",
    "SimulatedLauncher",
    "SiteError",
    "SlurmError",
    "StepLog",
    "StepReport",
    "StopRule",
    "TooFewNodesError",
    "TrialSpec",
    "batch_script",
    "check_unit",
    "classify",
    "clear_attempt",
    "cut_lines",
    "gather",
    "is_number",
    "job_of",
    "kept_result",
    "launcher_names",
    "load_site",
    "make_launcher",
    "minicluster",
    "module_argv",
    "parsed_python",
    "processes",
    "read_log",
    "read_result",
    "result_of_steps",
    "shipped_sites",
    "submit",
    "watch",
]
