"""Lists of models: filters of a search, and the models of one namespace."""
