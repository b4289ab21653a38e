# The facade: what __init__.py exports, each from its module when it is first used.

from .comparison import comparison_text
from .cost.constants import Array, Constants
from .cost.groups import MissingFactError
from .cost.model import LIKELY, CostModel, Prediction, of_engines
from .cost.stages import refused
from .cost.time_constants import TimeConstants
from .explanation import explain_trial
from .finalists import next_repeat, noise_of
from .imported.deephyper import results_table
from .imported.results import read_results
from .metrics import Metrics, MissingMetricError
from .pareto import non_dominated
from .prediction.acquisition import acquisition, expected_gain, remaining_deviation, states_gain
from .prediction.candidate_set import CandidateSet
from .prediction.columns import unpriced_parameters
from .prediction.drawn_model import drawn
from .prediction.foretold import foretold, positive
from .prediction.goal import Goal
from .prediction.posterior import Observations, Posterior
from .prediction.pricing import NotPricedError, Pricing, price
from .prediction.ranking import (
    Ranking,
    calibration_note,
    explain,
    likely_to_fit,
    rank,
    rank_one,
    ranking_table,
    search_warnings,
)
from .prediction.scalarization import Scalarization, merits, reached, weights_of
from .prediction.scaling import Scaled, scale, scaling_table
from .prediction.start_up import StartUp, starts_longer_than_it_runs
from .prediction.time_limits import in_time, start_up_s
from .prediction.trust import trusted
from .preflight.file import Preflight
from .report.forests import NotEnough, Sensitivity
from .report.model_sensitivity import model_sensitivity
from .report.outlook import Outlook
from .report.page import write_report
from .report.plots import scaling_image, sensitivity_figure
from .report.sensitivity import objective_sensitivity
from .run.best import Best
from .run.events import Closed, Ended, Event, Opened, Proposed, Started
from .run.fold import Run, read_run
from .run.folder import RunFolder
from .run.frame import load
from .run.identity import Identity
from .run.journal import Journal
from .run.lines import RunError
from .run.lock import RunBusyError
from .run.repair import repair_run
from .run.results import ResultsFile
from .run.trial import Trial
from .sweeps.read import read_tables
from .sweeps.record import Table, TableError, number_column
from .units import unit
from .verdict import front_lines, verdict_lines

__all__ = [
    "LIKELY",
    "Array",
    "Best",
    "CandidateSet",
    "Closed",
    "Constants",
    "CostModel",
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
    "Prediction",
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
    "TimeConstants",
    "Trial",
    "acquisition",
    "calibration_note",
    "comparison_text",
    "drawn",
    "expected_gain",
    "explain",
    "explain_trial",
    "foretold",
    "front_lines",
    "in_time",
    "likely_to_fit",
    "load",
    "merits",
    "model_sensitivity",
    "next_repeat",
    "noise_of",
    "non_dominated",
    "number_column",
    "objective_sensitivity",
    "of_engines",
    "positive",
    "price",
    "rank",
    "rank_one",
    "ranking_table",
    "reached",
    "read_results",
    "read_run",
    "read_tables",
    "refused",
    "remaining_deviation",
    "repair_run",
    "results_table",
    "scale",
    "scaling_image",
    "scaling_table",
    "search_warnings",
    "sensitivity_figure",
    "start_up_s",
    "starts_longer_than_it_runs",
    "states_gain",
    "trusted",
    "unit",
    "unpriced_parameters",
    "verdict_lines",
    "weights_of",
    "write_report",
]
