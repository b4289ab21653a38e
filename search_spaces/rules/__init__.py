"""Rules that decide which configurations are valid."""
