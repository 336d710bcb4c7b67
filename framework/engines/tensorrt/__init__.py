"""TensorRT, and TensorRT-RTX, which has the same Python interface."""
