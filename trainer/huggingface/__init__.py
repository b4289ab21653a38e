"""Weights as ``transformers`` keeps them: read as a beginning, written at the end."""
