"""Layers above the kernels: vmap, autocast, fake kernels, the profiler."""
