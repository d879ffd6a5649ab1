"""Pages for administrators of the hub; for anybody else they do not exist."""
