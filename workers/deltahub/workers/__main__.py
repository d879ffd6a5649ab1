"""`python -m deltahub.workers`: the worker without the rest of the command line."""

from deltahub.workers.commands import worker

if __name__ == "__main__":
    worker(prog_name="deltahub worker")
