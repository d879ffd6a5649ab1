"""Arithmetic and arguments that workers and client share: merging, adapters, transfer."""
