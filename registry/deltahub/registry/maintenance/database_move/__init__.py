"""Copies a hub's database from SQLite to PostgreSQL, and proves the copy before it counts."""
