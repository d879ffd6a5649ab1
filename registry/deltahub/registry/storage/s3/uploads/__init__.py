"""Writes objects into a bucket: by one request, or by parts that are sent side by side."""
