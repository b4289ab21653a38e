"""Conditions that a configuration must satisfy to be trained, as a table; see ``requirements``."""
