"""Cost of the report, and agreement of its sample with all trials."""
