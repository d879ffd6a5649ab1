"""The commands below `deltahub user`."""
