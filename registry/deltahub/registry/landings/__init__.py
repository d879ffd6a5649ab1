"""Reads uploads before they are ingested, replaces damaged ones, and deletes condemned ones."""
