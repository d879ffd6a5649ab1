"""What readers of tensors share: how deep they are in a chain, and what they will read next."""
