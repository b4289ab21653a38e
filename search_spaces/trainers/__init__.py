"""Trainers that a space can name: how each is started, and what meshtune knows of it."""
