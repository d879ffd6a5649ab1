"""Counts what the database does, for monitoring."""
