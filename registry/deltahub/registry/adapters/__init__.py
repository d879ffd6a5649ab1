"""What the hub knows of adapters: reports on them, the rule of their conversion, and kits."""
