"""The jobs, one module each, and the table of their kinds."""
