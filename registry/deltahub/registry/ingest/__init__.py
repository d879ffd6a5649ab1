"""Turns landed files into recipes, tensors and packs, and verifies them before the switch."""
