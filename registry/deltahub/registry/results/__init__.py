"""What a job has made of models becomes a repository like any other."""
