"""A deployment in one process, without Hydra: its checked graph, its executors, its open engines."""
