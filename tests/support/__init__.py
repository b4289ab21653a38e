"""Fakes and helpers that several test modules share; each exists once."""
