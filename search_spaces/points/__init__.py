"""The valid configurations of a space: enumerated, counted, drawn."""
