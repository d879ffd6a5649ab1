"""The job `compare`: two models become a report, tensor by tensor."""
