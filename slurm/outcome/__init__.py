"""How a trial ended: watch, evidence, classification."""
