"""The records that a training configuration consists of, by what they are about."""
