"""The language of space files: the records of their sections."""
