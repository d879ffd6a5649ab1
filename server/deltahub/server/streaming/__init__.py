"""Bodies of requests and responses: bounded in memory, fair among clients."""
