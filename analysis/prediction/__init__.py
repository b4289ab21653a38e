"""Predictions for a space: prices, rankings, the posterior after trials, the acquisition."""
