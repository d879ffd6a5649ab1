"""The files that make a revision an adapter, as PEFT names them."""

from typing import Final

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
