"""Garbage collection (gc) and consistency checks (fsck) of the whole data folder."""
