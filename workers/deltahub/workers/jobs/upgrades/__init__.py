"""The job `upgrade_base`: it plans how the adapters of a base move to a newer one."""
