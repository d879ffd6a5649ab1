"""Routes of the Hugging Face API that change repositories."""
