"""Weights of ``transformers``: read to initialize training, written at its end."""
