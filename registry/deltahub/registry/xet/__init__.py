"""Uploads in the protocol of Hugging Face's Xet: formats, what is kept of them, and how long."""
