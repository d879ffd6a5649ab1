"""Merging of fine-tunes of one base: the arithmetic, without storage."""
