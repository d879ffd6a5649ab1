"""A restore makes a hub of a snapshot: its target, the objects, and the database last."""
