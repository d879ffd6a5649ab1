"""The process in which a job computes: `python -m deltahub.workers.compute`."""

from deltahub.workers.compute.child import main

if __name__ == "__main__":
    main()
