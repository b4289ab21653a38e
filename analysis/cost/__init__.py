"""What fits and how fast, before anything runs: memory and time of training configurations."""
