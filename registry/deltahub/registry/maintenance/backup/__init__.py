"""Backups: the database and every object that it names, copied to another place and proved."""
