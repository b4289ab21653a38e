"""What the cost model says of a space and its configurations."""
