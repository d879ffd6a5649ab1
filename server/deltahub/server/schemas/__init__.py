"""The JSON that goes in and out of /v1."""
