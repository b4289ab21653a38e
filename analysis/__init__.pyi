# The facade: what __init__.py exports, each from its module when it is first used.
from .comparison import comparison_text
from .cost.activations import refused
from .cost.constants import Array, Constants
from .cost.groups import MissingFactError
from .cost.jobs import RECOMPUTE, Jobs, Mask
from .cost.model import LIKELY, CostModel, Prediction, of_engines
from .cost.time_constants import TimeConstants
from .explanation import differences, explain_trial
from .finalists import next_repeat, noise_of
from .imported.deephyper import is_deephyper
from .imported.results import is_storage, read_results
from .metrics import MissingMetricError, metric, numbers, possible, required_metric
from .pareto import non_dominated
from .prediction.acquisition import acquisition, expected_gain, remaining_deviation, states_gain
from .prediction.candidate_set import CandidateSet
from .prediction.columns import unpriced_parameters
from .prediction.drawn_model import drawn
from .prediction.foretold import foretold, positive
from .prediction.goal import Goal
from .prediction.held_out import CrossValidation, cross_validated
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
from .preflight.file import NotMeasuredError, cluster_file
from .preflight.summary import preflight_summary, preflight_warnings
from .report.forests import NotEnough, Sensitivity
from .report.model_sensitivity import ModelSensitivity, model_sensitivity
from .report.outlook import Outlook
from .report.page import write_imported, write_report
from .report.plots import image, sensitivity_figure, trajectory_figure
from .report.scaling import scaling_figure
from .report.section import Content, Section
from .report.sections import SECTIONS
from .report.sensitivity import failure_sensitivity, objective_sensitivity
from .report.trajectory import failures, ranked_trials, trajectory
from .run.best import TRIAL_DIR, Best, load_best, parameters_of
from .run.events import Closed, Ended, Event, Opened, Proposed, Started
from .run.fold import Run, read_run
from .run.folder import TRIAL_FILE, FingerprintError, RunFolder
from .run.frame import frame_of, load
from .run.identity import Identity
from .run.journal import Journal
from .run.lines import RunError
from .run.lock import RunBusyError, driver_of, lock
from .run.repair import Repair, repair_run
from .run.results import ResultsFile, write_results
from .run.trial import EXPLORATION, TOLD, Attempt, Trial
from .sweeps.gpus import resized
from .sweeps.read import TABLE_FORMATS, missing_columns, read_tables
from .sweeps.record import Table, TableError, number_column, read_csv
from .units import clock_text, config_text, counted, duration, number, unit
from .verdict import attempt_text, early_stop_lines, front_lines, objectives_text, verdict_lines

__all__ = [
    "EXPLORATION",
    "LIKELY",
    "RECOMPUTE",
    "SECTIONS",
    "TABLE_FORMATS",
    "TOLD",
    "TRIAL_DIR",
    "TRIAL_FILE",
    "Array",
    "Attempt",
    "Best",
    "CandidateSet",
    "Closed",
    "Constants",
    "Content",
    "CostModel",
    "CrossValidation",
    "Ended",
    "Event",
    "FingerprintError",
    "Goal",
    "Identity",
    "Jobs",
    "Journal",
    "Mask",
    "MissingFactError",
    "MissingMetricError",
    "ModelSensitivity",
    "NotEnough",
    "NotMeasuredError",
    "NotPricedError",
    "Observations",
    "Opened",
    "Outlook",
    "Posterior",
    "Prediction",
    "Pricing",
    "Proposed",
    "Ranking",
    "Repair",
    "ResultsFile",
    "Run",
    "RunBusyError",
    "RunError",
    "RunFolder",
    "Scalarization",
    "Scaled",
    "Section",
    "Sensitivity",
    "StartUp",
    "Started",
    "Table",
    "TableError",
    "TimeConstants",
    "Trial",
    "acquisition",
    "attempt_text",
    "calibration_note",
    "clock_text",
    "cluster_file",
    "comparison_text",
    "config_text",
    "counted",
    "cross_validated",
    "differences",
    "drawn",
    "driver_of",
    "duration",
    "early_stop_lines",
    "expected_gain",
    "explain",
    "explain_trial",
    "failure_sensitivity",
    "failures",
    "foretold",
    "frame_of",
    "front_lines",
    "image",
    "in_time",
    "is_deephyper",
    "is_storage",
    "likely_to_fit",
    "load",
    "load_best",
    "lock",
    "merits",
    "metric",
    "missing_columns",
    "model_sensitivity",
    "next_repeat",
    "noise_of",
    "non_dominated",
    "number",
    "number_column",
    "numbers",
    "objective_sensitivity",
    "objectives_text",
    "of_engines",
    "parameters_of",
    "positive",
    "possible",
    "preflight_summary",
    "preflight_warnings",
    "price",
    "rank",
    "rank_one",
    "ranked_trials",
    "ranking_table",
    "reached",
    "read_csv",
    "read_results",
    "read_run",
    "read_tables",
    "refused",
    "remaining_deviation",
    "repair_run",
    "required_metric",
    "resized",
    "scale",
    "scaling_figure",
    "scaling_table",
    "search_warnings",
    "sensitivity_figure",
    "start_up_s",
    "starts_longer_than_it_runs",
    "states_gain",
    "trajectory",
    "trajectory_figure",
    "trusted",
    "unit",
    "unpriced_parameters",
    "verdict_lines",
    "weights_of",
    "write_imported",
    "write_report",
    "write_results",
]
