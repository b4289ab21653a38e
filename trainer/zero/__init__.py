"""Data parallelism with split states: placements over FSDP2, and whole weights in buckets."""
