"""From measurements of a machine to a cluster file."""
