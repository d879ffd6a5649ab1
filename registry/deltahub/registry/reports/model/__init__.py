"""Reports on parts of one model: its files, its tensors, and what a commit changed."""
