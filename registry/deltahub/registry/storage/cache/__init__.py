"""A cache on the local disk of what was read from a store that is far away."""
