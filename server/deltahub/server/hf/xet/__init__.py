"""The Xet endpoints."""
