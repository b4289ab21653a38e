"""A real Slurm on one Linux machine."""
