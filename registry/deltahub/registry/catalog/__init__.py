"""Repositories, refs, revisions and their entries."""
