"""The store of this hub: where its objects lie, and what its processes may do there."""
