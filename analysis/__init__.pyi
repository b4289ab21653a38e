# The facade: what __init__.py exports, each from its module when it is first used.

from .comparison import Comparison
from .cost.groups import MissingFactError
from .cost.model import CostModel
from .explanation import explain_trial
from .finalists import next_repeat, noise_of
from .imported.deephyper import results_run
from .imported.results import read_results
from .metrics import Metrics, MissingMetricError
from .prediction.acquisition import acquisition, expected_gain
from .prediction.candidate_set import CandidateSet
from .prediction.goal import Goal
from .prediction.posterior import Observations, Posterior
from .prediction.pricing import NotPricedError, Pricing
from .prediction.probes import informative, lessons
from .prediction.ranking import Ranking, search_warnings
from .prediction.scalarization import Scalarization
from .prediction.scaling import Scaled
from .prediction.start_up import StartUp
from .prediction.trust import trusted
from .preflight.file import Preflight
from .report.drawing import Drawn
from .report.forests import NotEnough, Sensitivity
from .report.outlook import Outlook
from .report.page import write_report
from .report.sensitivity import failure_sensitivity, objective_sensitivity
from .run.best import Best
from .run.events import Closed, Ended, Event, Opened, Proposed, Started
from .run.fold import Run, read_run
from .run.folder import Identity, RunFolder
from .run.frame import load
from .run.journal import Journal
from .run.lines import RunError
from .run.lock import RunBusyError
from .run.repair import repair_run
from .run.results import ResultsFile
from .run.trial import Trial
from .sweeps.read import read_tables
from .sweeps.record import Table, TableError, read_csv
from .verdict import verdict_lines

__all__ = [
    "Best",
    "CandidateSet",
    "Closed",
    "Comparison",
    "CostModel",
    "Drawn",
    "Ended",
    "Event",
    "Goal",
    "Identity",
    "Journal",
    "Metrics",
    "MissingFactError",
    "MissingMetricError",
    "NotEnough",
    "NotPricedError",
    "Observations",
    "Opened",
    "Outlook",
    "Posterior",
    "Preflight",
    "Pricing",
    "Proposed",
    "Ranking",
    "ResultsFile",
    "Run",
    "RunBusyError",
    "RunError",
    "RunFolder",
    "Scalarization",
    "Scaled",
    "Sensitivity",
    "StartUp",
    "Started",
    "Table",
    "TableError",
    "Trial",
    "acquisition",
    "expected_gain",
    "explain_trial",
    "failure_sensitivity",
    "informative",
    "lessons",
    "load",
    "next_repeat",
    "noise_of",
    "objective_sensitivity",
    "read_csv",
    "read_results",
    "read_run",
    "read_tables",
    "repair_run",
    "results_run",
    "search_warnings",
    "trusted",
    "verdict_lines",
    "write_report",
]
