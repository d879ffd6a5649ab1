"""Checks rows against objects and objects against rows; fixes nothing."""
