# The facade: what __init__.py exports, each from its module when it is first used.
from .comparison import Comparison as Comparison
from .cost.groups import MissingFactError as MissingFactError
from .cost.model import CostModel as CostModel
from .explanation import explain_trial as explain_trial
from .finalists import next_repeat as next_repeat, noise_of as noise_of
from .imported.deephyper import results_run as results_run
from .imported.results import read_results as read_results
from .metrics import Metrics as Metrics, MissingMetricError as MissingMetricError
from .prediction.acquisition import acquisition as acquisition, expected_gain as expected_gain
from .prediction.candidate_set import CandidateSet as CandidateSet
from .prediction.goal import Goal as Goal, Scalarization as Scalarization
from .prediction.posterior import Observations as Observations, Posterior as Posterior
from .prediction.pricing import NotPricedError as NotPricedError, Pricing as Pricing
from .prediction.probes import informative as informative, lessons as lessons
from .prediction.ranking import Ranking as Ranking, search_warnings as search_warnings
from .prediction.scaling import Scaled as Scaled
from .prediction.start_up import StartUp as StartUp
from .prediction.trust import trusted as trusted
from .preflight.file import Preflight as Preflight
from .report.drawing import Drawn as Drawn
from .report.forests import NotEnough as NotEnough, Sensitivity as Sensitivity
from .report.outlook import Outlook as Outlook
from .report.page import write_report as write_report
from .report.sensitivity import (
    failure_sensitivity as failure_sensitivity,
    objective_sensitivity as objective_sensitivity,
)
from .run.best import Best as Best
from .run.events import (
    Closed as Closed,
    Ended as Ended,
    Event as Event,
    Opened as Opened,
    Proposed as Proposed,
    Started as Started,
)
from .run.fold import Run as Run, read_run as read_run
from .run.folder import Identity as Identity, RunFolder as RunFolder
from .run.frame import load as load
from .run.journal import Journal as Journal
from .run.lines import RunError as RunError
from .run.lock import RunBusyError as RunBusyError
from .run.repair import repair_run as repair_run
from .run.results import ResultsFile as ResultsFile
from .run.trial import Trial as Trial
from .sweeps.read import read_tables as read_tables
from .sweeps.record import Table as Table, TableError as TableError, read_csv as read_csv
from .verdict import verdict_lines as verdict_lines
