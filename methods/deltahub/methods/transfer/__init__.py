"""Moves an adapter to a new base without its private data: Trans-LoRA and cheaper ways."""
