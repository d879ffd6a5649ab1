"""Packs and frames: write, read, cache and switch the stored form of tensors."""
