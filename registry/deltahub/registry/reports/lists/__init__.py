"""Lists for administrators: all rows of the hub, in any order, a page at a time."""
