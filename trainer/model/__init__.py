"""The transformer: its modules, parameters and initial values."""
