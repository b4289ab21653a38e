from . import minicluster, processes
from .clock import Clock
from .documents import (
    Document,
    Where,
    as_written,
    document_of,
    parse_document,
    plain_scalar,
    read_document,
    written_document,
)
from .files import (
    FileError,
    MissingFileError,
    first_line,
    is_disk_full,
    listed,
    message,
    open_regular,
    parse_json,
    read_bytes,
    read_end,
    read_text,
    shown,
    without_secrets,
)
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
from .outcome.kinds import (
    BLAMELESS,
    FAILURES,
    Kind,
    SaidOf,
)
from .outcome.result import kept_result
from .outcome.step_log import (
    EarlyStop,
    StepLog,
    StepReport,
    StopRule,
    is_number,
    result_of_steps,
)
from .outcome.texts import LauncherTexts
from .outcome.watch import STDOUT_NAME, watch
from .pool import NodePool
from .python import module_argv
from .rank_server import parsed_python
from .records import validate, wrong_value
from .registry import (
    Registry,
    RegistryError,
    launcher_names,
    make_launcher,
)
from .simulated.cluster import EPOCH, SimulatedCluster
from .simulated.launcher import SimulatedLauncher
from .simulated.trial import Price
from .srun.batch import (
    SCRIPT_NAME,
    BatchError,
    batch_script,
    job_of,
    submit,
)
from .srun.shell import NoAnswerError, SlurmError
from .srun.site import SiteError, load_site, shipped_sites
from .terminal import printable
from .trial import (
    Kept,
    Lease,
    ResultSource,
    TrialSpec,
)

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
    "Document",
    "EarlyStop",
    "FileError",
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
    "MissingFileError",
    "NoAnswerError",
    "NodePool",
    "Outcome",
    "Pattern",
    "Price",
    "QuantityError",
    "Registry",
    "RegistryError",
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
    "Where",
    "as_written",
    "batch_script",
    "check_unit",
    "classify",
    "clear_attempt",
    "cut_lines",
    "document_of",
    "first_line",
    "gather",
    "is_disk_full",
    "is_number",
    "job_of",
    "kept_result",
    "launcher_names",
    "listed",
    "load_site",
    "make_launcher",
    "message",
    "minicluster",
    "module_argv",
    "open_regular",
    "parse_document",
    "parse_json",
    "parsed_python",
    "plain_scalar",
    "printable",
    "processes",
    "read_bytes",
    "read_document",
    "read_end",
    "read_log",
    "read_result",
    "read_text",
    "result_of_steps",
    "shipped_sites",
    "shown",
    "submit",
    "validate",
    "watch",
    "without_secrets",
    "written_document",
    "wrong_value",
]
