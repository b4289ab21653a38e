"""Recitation of training texts by a model, with and without the goldfish loss."""
