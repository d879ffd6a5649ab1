"""The pages of one model."""
