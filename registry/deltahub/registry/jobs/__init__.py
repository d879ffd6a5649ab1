"""The table of jobs: enqueue, take up, report progress, show, cancel."""
