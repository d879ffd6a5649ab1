"""Logging in by OpenID Connect: what is asked of a provider, and what its answers prove."""
