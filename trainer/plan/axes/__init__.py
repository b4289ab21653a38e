"""Kinds of parallelism, a file each: degree, requirements, what it splits, what its ranks send.

``mesh`` numbers the ranks, ``axis`` says what an axis is, ``registry`` lists them.
"""
