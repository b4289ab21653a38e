"""Searches replayed on recorded sweeps."""
