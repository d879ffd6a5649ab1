"""Kinds of jobs about a base and all of its adapters."""
