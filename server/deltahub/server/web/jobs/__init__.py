"""Jobs: lists, one that is followed while it runs, and forms that ask for one."""
