"""Before a run: the cost model. After it: trajectory, SHAP and the report page."""

from analysis.run import RunError, load  # cheap: load itself imports pandas

__all__ = ["RunError", "load"]
