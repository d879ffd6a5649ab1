"""The API that Hugging Face clients speak, on the same registry as /v1."""
