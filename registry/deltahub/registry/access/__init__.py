"""Access control: users, tokens, organizations, roles, and the contents a caller may read."""
