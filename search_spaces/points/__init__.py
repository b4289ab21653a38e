"""The configurations of a space: parameters, enumeration, counting."""
