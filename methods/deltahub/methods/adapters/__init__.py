"""Adapters: what PEFT saves of a LoRA, and the weights that it stands for."""
