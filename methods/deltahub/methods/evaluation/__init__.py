"""How well a model does on examples: loads torch and transformers when it is used."""
