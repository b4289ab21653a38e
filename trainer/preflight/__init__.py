"""Measuring a machine: what devices compute and links carry."""
