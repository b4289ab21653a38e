"""A run on disk: its journal, folder and tables; written and read here only."""
