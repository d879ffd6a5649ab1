"""Uploads a folder: finds what the hub lacks, encodes it, sends it."""
