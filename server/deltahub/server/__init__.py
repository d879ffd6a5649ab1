"""The HTTP service: our own API, and the API that Hugging Face clients speak."""
