"""Pull: finds the missing files of a revision, rebuilds them and verifies them."""
