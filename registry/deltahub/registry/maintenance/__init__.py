"""Garbage collection and checks of the whole data folder."""
