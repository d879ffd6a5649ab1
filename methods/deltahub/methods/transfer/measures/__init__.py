"""How good a transfer is, in numbers: pure arithmetic, without a model."""
