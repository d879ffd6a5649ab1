"""HTTP calls to the hub."""
