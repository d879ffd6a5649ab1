"""Unfinished uploads: files of this machine, or parts in the bucket and rows of the database."""
