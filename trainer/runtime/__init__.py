"""What a rank stands on: device, memory, peers, phase."""
