"""Moves the hub's objects to another store while the hub serves."""
