"""The ground floor: files, documents, records, messages, registries, words of failures. Torch-free.

Nothing here knows of Slurm or searches. Other packages import its modules directly.
"""
