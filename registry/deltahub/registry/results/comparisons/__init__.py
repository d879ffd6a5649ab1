"""Reports on pairs of models: found again by their weights, read by whoever may read both."""
