"""What a namespace may use, and what it uses."""
