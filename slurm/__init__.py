"""Nodes and processes: pool, launchers, step lifecycle, outcomes.

Imports neither torch nor deephyper.
"""
