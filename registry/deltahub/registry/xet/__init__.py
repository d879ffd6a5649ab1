"""The Xet protocol of Hugging Face: its formats, uploads of xorbs and shards, deduplication."""
