"""Routes for what jobs have found out, beside repositories."""
