"""Finds the base of a tensor whose layout is another one than the base's."""
