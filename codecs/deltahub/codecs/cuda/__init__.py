"""Decodes frames on a GPU, straight into weight buffers."""
