"""Ranks working on one model: mesh, collectives, tensor and pipeline parallelism."""
