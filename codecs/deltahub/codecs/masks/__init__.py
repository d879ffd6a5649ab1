"""Masks: a task of a merged model, from the base, the unified model and one bit an element."""
