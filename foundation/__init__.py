"""The lowest layer: files, documents, records, messages, registries, failure patterns. Torch-free.

Nothing here knows of Slurm or searches. Other packages import its modules directly.
"""
