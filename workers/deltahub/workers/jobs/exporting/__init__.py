"""The job that exports a model whose weights stay compressed in memory."""
