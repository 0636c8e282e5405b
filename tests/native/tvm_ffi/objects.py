"""Functions that get tensor objects."""

import keyfold as kf


def with_objects(function, **options):
    """A kernel of a TVM FFI function that takes its tensors as objects, not as views."""
    return kf.NativeKernel.from_tvm_ffi(function, tensors="object", **options)
