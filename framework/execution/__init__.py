"""Running requests through a graph of stages: the runner contract, the executor, streams, and batching policies."""
