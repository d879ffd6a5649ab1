"""The database schema's history; applied by deltahub.registry.db.schema."""
