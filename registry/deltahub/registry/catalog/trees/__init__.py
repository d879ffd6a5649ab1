"""Reads and writes the trees of revisions, in time and space of what is asked or changed."""
