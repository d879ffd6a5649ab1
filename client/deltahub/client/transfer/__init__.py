"""Adapters between a hub and a training: init kits, and initial factors that are kept."""

from deltahub.client.transfer.initial_factors import (
    initial_factors_callback,
    keep_initial_factors,
)
from deltahub.client.transfer.pissa import pissa_model

__all__ = ["initial_factors_callback", "keep_initial_factors", "pissa_model"]
