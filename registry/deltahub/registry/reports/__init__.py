"""Figures about what is stored, for people."""
