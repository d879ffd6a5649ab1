"""Counts what a store does, for monitoring."""
