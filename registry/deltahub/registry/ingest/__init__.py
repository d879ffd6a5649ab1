"""Turns landed files into recipes, tensors and packs, and proves them before the switch."""
