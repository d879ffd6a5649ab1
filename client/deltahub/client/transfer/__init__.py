"""Adapters on the way between a hub and a training: models that start from an init kit."""

from deltahub.client.transfer.pissa import pissa_model

__all__ = ["pissa_model"]
