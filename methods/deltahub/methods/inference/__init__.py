"""Models that run with weights that stay compressed in memory."""
