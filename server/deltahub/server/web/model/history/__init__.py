"""The commits of a model, one commit, and its branches and tags."""
