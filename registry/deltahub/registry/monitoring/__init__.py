"""What a process counts, as Prometheus reads it: of a server and of a worker alike."""
