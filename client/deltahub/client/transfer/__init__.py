"""Adapters between a hub and a training: init kits, kept initial factors, kits for a move."""

from deltahub.client.transfer.examples import Example, read_examples
from deltahub.client.transfer.initial_factors import (
    initial_factors_callback,
    keep_initial_factors,
)
from deltahub.client.transfer.kits import KitOptions, MadeKit, make_kit
from deltahub.client.transfer.pissa import pissa_model

__all__ = [
    "Example",
    "KitOptions",
    "MadeKit",
    "initial_factors_callback",
    "keep_initial_factors",
    "make_kit",
    "pissa_model",
    "read_examples",
]
