"""The transformer: its shape, its parameters, and its first values."""
