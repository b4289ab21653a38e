"""A space that needs neither model nor trainer, for tests of what is said of runs."""

SPACE = """
version: 1
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [train, "{tp}"]}
parameters: {tp: [1, 2, 4]}
objective: {maximize: speed}
budget: {trials: 9}
"""
