"""Compares two models tensor by tensor: how much changed, where, and in how many directions."""
