"""Pages of lists: rows in an order, from where the page before ended."""
