"""Before a run: the cost model. After it: trajectory, SHAP and the report page."""

from analysis.run.events import RunError
from analysis.run.frame import load  # cheap: it imports pandas when it is called

__all__ = ["RunError", "load"]
