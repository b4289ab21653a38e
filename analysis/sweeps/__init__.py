"""Published and recorded sweeps of training runs, read into one form."""
