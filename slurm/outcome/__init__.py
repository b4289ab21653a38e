"""The end of a trial: watch, evidence, classification."""
