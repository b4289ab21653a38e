"""Token files and micro-batches."""
