"""What the files of a model say about it: its card, its configurations, its headers."""
