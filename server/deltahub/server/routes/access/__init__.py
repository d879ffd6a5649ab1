"""The routes about users: tokens, sessions, organizations, and for administrators all users."""
