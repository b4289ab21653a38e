"""A training job, described once: fields, parallel axes, sizes, placement, traffic. Torch-free.

The trainer runs it, the space language checks it, the cost model prices it; all of them import
these modules directly.
"""
