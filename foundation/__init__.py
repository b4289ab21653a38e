"""The ground floor: files that people write, messages, records, registries. Torch-free.

Nothing here knows of training, Slurm or searches. Other packages import its modules directly.
"""
