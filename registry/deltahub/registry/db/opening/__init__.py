"""What comes before a hub uses its database: it is migrated once, and refused if it has moved."""
