"""Frames straight from the object store, by links that the hub gives for a few minutes."""
