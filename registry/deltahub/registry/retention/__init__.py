"""What of a repository's history is kept, and what happens to the rest."""
