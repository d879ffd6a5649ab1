"""Routes about runs of training."""
