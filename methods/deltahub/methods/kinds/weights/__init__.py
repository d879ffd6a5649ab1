"""Which weights a job works on, by the names and shapes that the hub knows before it runs."""
