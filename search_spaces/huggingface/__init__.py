"""Hugging Face's ``config.json`` files, read as models."""
