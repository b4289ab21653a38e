"""Training across slow links: nodes as network namespaces of one machine, timed.

``python -m benchmarks.slow_links`` measures the placements; see ``docs/results/slow-links.md``.
"""
