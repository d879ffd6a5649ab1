"""Database: tables, sessions, schema version, and all SQL that differs between dialects."""
