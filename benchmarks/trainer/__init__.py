"""The trainer's speed and convergence."""
