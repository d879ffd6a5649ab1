"""The pages of a person's own account, below /-/settings."""
