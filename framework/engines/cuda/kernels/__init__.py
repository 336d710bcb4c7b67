"""Own CUDA kernels for a decoder stack at 1 to 4 rows, where launches and not bytes are the cost.

Written for a shape (`shape.py`), not for a model, and compiled for it by NVRTC: `pip install 'multistage[cuda]'` brings
it; neither nvcc nor a compiled extension is needed. `decoder.cu` says how the kernel works.
"""
