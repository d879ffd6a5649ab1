"""The command `deltahub`."""
