"""The job `transfer_adapter`: it moves an adapter to another base."""
