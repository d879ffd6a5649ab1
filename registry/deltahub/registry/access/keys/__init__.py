"""Keys that the hub makes: its own secret one, and from it those of S3 clients."""
