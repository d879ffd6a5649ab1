"""Routes of the Hugging Face API that read repositories."""
