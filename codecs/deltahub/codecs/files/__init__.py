"""Model files: how one falls into tensors, and the recipe that rebuilds it."""
