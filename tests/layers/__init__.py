"""Autograd, vmap, autocast, traces and fake kernels, alone and on top of each other."""
