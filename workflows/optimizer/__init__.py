"""Policies that propose the next configuration."""
