"""Other programs' search results, read as a run."""
