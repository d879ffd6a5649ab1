"""The HTTP API of the Hugging Face Hub, on the same registry as /v1."""
