"""What lies on this machine: the Hugging Face cache, folders, the index of hashed files."""
