"""Jobs that make adapters: init kits, conversions."""
