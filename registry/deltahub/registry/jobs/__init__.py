"""Jobs: enqueue, start, report progress, show, cancel."""
