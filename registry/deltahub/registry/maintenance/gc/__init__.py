"""Garbage collection: the plan, and its execution."""
