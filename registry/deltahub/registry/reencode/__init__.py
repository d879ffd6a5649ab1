"""Re-encodes stored tensors: after a base arrived, or with a newer encoder."""
