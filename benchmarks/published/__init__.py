"""Readers of published tables that are not shipped."""
