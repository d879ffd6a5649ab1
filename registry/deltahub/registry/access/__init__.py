"""Who may do what: users, tokens, organizations, roles, visible contents."""
