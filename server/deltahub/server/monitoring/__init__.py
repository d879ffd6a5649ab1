"""What operators and their monitors ask: metrics of this hub, and whether it is ready."""
