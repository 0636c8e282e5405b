"""Kernels for the namespace `shop`.

Importing this registers nothing: the module `keyfold_shop.kernels` does, when it is needed.
"""
