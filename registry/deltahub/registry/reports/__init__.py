"""Reports on stored revisions for users."""
