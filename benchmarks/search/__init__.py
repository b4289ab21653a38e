"""Trials until a good configuration, against peers.

python -m benchmarks.search --truth FOLDER
"""
