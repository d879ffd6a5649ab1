"""What administrators ask of the whole hub: the same that their pages show."""
