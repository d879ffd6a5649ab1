"""Downloads a revision: finds what is missing, rebuilds it, verifies it."""
