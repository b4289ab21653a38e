"""Searches on a simulated cluster."""
