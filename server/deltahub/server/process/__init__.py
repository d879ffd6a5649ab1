"""The process: the command `serve`, the supervisor and its server."""
