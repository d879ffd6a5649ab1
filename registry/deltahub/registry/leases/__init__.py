"""Locks of a hub: files of the data folder, or rows of a database that several machines share."""
