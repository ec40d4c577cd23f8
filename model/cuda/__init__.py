"""The GPU's own path: Triton kernels, imported only where a model runs on a CUDA device."""
