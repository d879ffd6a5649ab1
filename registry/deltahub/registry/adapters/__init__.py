"""What the hub knows of adapters: reports on them, and the rule of their conversion."""
