"""TVM FFI both ways: its functions as kernels, operators as its functions."""
