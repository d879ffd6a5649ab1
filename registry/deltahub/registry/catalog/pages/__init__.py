"""Lists the entries of a revision page by page: by path, or by folder."""
