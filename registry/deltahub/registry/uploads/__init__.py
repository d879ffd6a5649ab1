"""Bytes that arrive, until a commit can name them."""
