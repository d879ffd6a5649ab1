"""Marks what is lost: tensors and files whose stored bytes are gone or damaged."""
