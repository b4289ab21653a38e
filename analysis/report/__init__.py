"""The report over a run: its page, pictures and tables."""
