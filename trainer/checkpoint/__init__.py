"""Checkpoints that are complete or absent, and their chunks."""
