"""Connections before a request is handled: how many there are, from where, and for which host."""
