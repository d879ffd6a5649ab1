"""The ways to move an adapter, except training on completions, which needs a model (`models`)."""
