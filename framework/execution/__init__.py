"""Running requests through a graph of stages: the runner contract, the executor, sessions, streams and policies."""
