"""Trials as steps of a Slurm allocation."""
