"""The process: the command `serve`, the HTTP server and the supervisor of the worker."""
