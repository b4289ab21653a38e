"""What makes a configuration valid."""
