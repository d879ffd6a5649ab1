"""Upgrades of a base: the plan for its adapters, the decisions on it, and the way back."""
