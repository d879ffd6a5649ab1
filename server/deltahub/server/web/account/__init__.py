"""What belongs to one person: logging in, and their own settings."""
