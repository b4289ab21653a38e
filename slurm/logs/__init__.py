"""From a trainer's log lines to metrics: numbers with their units, patterns, steps."""
