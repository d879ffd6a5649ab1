"""Codecs for float tensors without a base."""
