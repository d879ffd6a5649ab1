"""Steps as folders in the layouts of reinforcement learning systems, for today's engines."""
