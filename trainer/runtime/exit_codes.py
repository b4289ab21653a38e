"""Exit codes of a rank: of ``python -m trainer`` and of ``python -m trainer.preflight``."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INVALID = 2  # the configuration, the environment or the command line is wrong
EXIT_OUT_OF_MEMORY = 3
EXIT_PEER_FAILED = 4  # the rank left because another one had failed
EXIT_STOPPED = 143
"""Stopped by SIGTERM after saving a checkpoint; 128 + 15, as if the signal had ended it."""
