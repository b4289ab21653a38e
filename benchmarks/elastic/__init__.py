"""Long training through failures on a private Slurm."""
