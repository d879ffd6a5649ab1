"""What a person may ask of each kind of job: one argument schema for HTTP, SDK and CLI."""
