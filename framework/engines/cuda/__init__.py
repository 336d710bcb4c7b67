"""ONNX Runtime on an NVIDIA GPU; memory, streams and graphs of such a GPU."""
