"""Before a run: the cost model. After it: trajectory, SHAP and the report page."""
