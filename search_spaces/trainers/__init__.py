"""Trainers that a space can name: how each is started, and how its options are read."""
