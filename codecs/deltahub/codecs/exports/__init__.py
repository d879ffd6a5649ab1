"""Files whose weights stay compressed in memory: how a weight is coded, and the file around it."""
