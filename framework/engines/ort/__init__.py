"""ONNX Runtime on the CPU, and what both of its backends share."""
