"""Files on this machine: the Hugging Face cache, folders, and the index of hashed files."""
