"""The language of space files: document, schema, messages, expressions."""
