"""Kernels that aren't Python: C, numba, plugins in Rust, TVM FFI."""
