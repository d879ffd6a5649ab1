"""What the hub finds out about an adapter that it has stored."""
