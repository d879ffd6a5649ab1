"""Commands that ask for jobs: made from the argument schemas of their kinds."""
