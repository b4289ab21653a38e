"""Trials of a simulated cluster, in virtual time."""
