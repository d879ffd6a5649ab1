"""Lists of repositories: their orders, filters and keys, and the downloads that they count."""
