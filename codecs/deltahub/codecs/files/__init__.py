"""Model files: how they split into tensors, and the recipes that rebuild them."""
