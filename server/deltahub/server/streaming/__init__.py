"""Bodies of requests and responses, with bounded memory and slots shared fairly by clients."""
