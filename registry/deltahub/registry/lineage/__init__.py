"""Lineage: declared bases, measured bases, and similar models."""
