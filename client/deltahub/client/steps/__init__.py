"""Steps of a run: weights between a trainer's memory, the hub and the memory of its readers."""
