"""One file a noun of the API: parse, call the registry, shape the answer."""
