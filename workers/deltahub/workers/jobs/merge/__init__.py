"""The job `merge`: fine-tunes of one base become one repository with a branch for each task."""
