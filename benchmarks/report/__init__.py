"""What the report costs, and how well its sample agrees with all trials."""
