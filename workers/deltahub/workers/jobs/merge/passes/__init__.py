"""The passes over the tensors of a merge: what is read, made and stored."""
