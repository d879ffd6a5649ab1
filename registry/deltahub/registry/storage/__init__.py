"""Objects: whole byte strings under keys, written once."""
