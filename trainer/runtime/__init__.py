"""The environment of a rank: device, memory, peers, phase."""
