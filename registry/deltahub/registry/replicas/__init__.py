"""Second copies of packs that many files depend on: makes, proves and deletes them."""
