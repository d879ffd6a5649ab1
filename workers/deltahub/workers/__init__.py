"""Background jobs, and the engine that runs them."""
