"""What an adapter is, whether it fits its base, and which engines can serve it."""
