"""Runs of training: repositories whose commits are steps."""
