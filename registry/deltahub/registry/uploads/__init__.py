"""Receives uploads and verifies them, so that a commit can name them."""
