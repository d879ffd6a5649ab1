"""Packs and frames: how stored tensors are written, read, cached and replaced."""
