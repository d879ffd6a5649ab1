"""Routes of the Xet protocol, by which Hugging Face clients transfer large files."""
