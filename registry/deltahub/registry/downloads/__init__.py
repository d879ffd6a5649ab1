"""Rebuilds files from recipes, and plans what our client must download."""
