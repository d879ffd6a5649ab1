"""The routes of /v1, one file a noun: parse the request, call the registry, shape the answer."""
