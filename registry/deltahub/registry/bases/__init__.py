"""Chooses the base that a tensor is stored against."""
