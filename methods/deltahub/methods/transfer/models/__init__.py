"""All that runs or trains a model in a transfer: torch, transformers and peft are loaded here."""
