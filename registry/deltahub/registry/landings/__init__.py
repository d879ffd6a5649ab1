"""Reads uploads before they are ingested, and replaces damaged ones."""
