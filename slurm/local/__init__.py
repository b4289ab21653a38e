"""Trials as processes of this machine."""
