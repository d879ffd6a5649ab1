"""Data types of few bits for weights."""
