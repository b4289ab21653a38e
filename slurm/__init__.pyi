from . import minicluster as minicluster
from .launcher import (
    Launcher as Launcher,
    LauncherError as LauncherError,
    LauncherOptions as LauncherOptions,
)
from .outcome.classify import Outcome as Outcome, classify as classify, read_result as read_result
from .outcome.evidence import clear_attempt as clear_attempt, gather as gather
from .outcome.kinds import (
    BLAMELESS as BLAMELESS,
    FAILURES as FAILURES,
    Kind as Kind,
    SaidOf as SaidOf,
)
from .outcome.step_log import EarlyStop as EarlyStop, StepReport as StepReport, StopRule as StopRule
from .outcome.texts import LauncherTexts as LauncherTexts
from .outcome.watch import watch as watch
from .pool import NodePool as NodePool
from .python import module_argv as module_argv
from .registry import (
    Registry as Registry,
    RegistryError as RegistryError,
    launcher_names as launcher_names,
    make_launcher as make_launcher,
)
from .simulated.cluster import EPOCH as EPOCH, SimulatedCluster as SimulatedCluster
from .simulated.launcher import SimulatedLauncher as SimulatedLauncher
from .simulated.trial import Price as Price
from .srun.batch import (
    SCRIPT_NAME as SCRIPT_NAME,
    BatchError as BatchError,
    batch_script as batch_script,
    submit as submit,
)
from .srun.site import SiteError as SiteError, load_site as load_site
from .trial import (
    Lease as Lease,
    ResultSource as ResultSource,
    TrialSpec as TrialSpec,
)
