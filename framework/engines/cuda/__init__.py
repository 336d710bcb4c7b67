"""NVIDIA GPUs: memory, streams, graphs."""
