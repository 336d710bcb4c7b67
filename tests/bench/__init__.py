"""`make bench`: speed and memory beside the published implementations, measured in turn in one run."""
