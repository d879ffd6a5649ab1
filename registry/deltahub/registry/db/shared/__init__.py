"""What many processes on one database need: notices of changes, and tries after a lost race."""
