"""Searches for a product of thin matrices that predicts a fine-tune from its base."""
