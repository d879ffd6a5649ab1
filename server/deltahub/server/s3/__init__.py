"""The door for S3 clients: every model that a caller may read, as objects that nobody can write."""
