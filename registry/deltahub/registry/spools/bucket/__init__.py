"""Unfinished uploads that any machine goes on with: parts in the bucket, rows of the database."""
