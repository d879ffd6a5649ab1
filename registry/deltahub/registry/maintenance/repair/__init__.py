"""Marks what is lost, and takes the mark from what can be read again."""
