"""Cost of the driver itself."""
