"""Exports whose weights stay compressed: which weights are rounded, and what the report says."""
