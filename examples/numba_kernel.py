"""A kernel compiled by numba: its cfunc is registered as it is, and no Python runs in a call.

The convention passes addresses: of the values, 16 bytes each, and in a tensor's value that of its
DLTensor. docs/native-kernels.md has both layouts, which are written down here for numba. Needs
numba.
"""

import numpy as np
from numba import carray, cfunc, from_dtype, njit, types
from numba.extending import intrinsic

import keyfold as kf

VALUE = np.dtype([("type_index", "i4"), ("zero", "u4"), ("payload", "i8")])
TENSOR = np.dtype("i8,i4,i4,i4,u1,u1,u2,i8,i8,i8")
TENSOR.names = (
    *("data", "device_type", "device_id", "ndim", "code", "bits", "lanes"),
    *("shape", "strides", "byte_offset"),
)


@intrinsic
def pointer(typing, address):
    """An address as a pointer, which `carray` takes."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate


@njit
def vector(value):
    """The tensor in a value as an array; an empty one if it isn't a float64 vector in a row."""
    dl = carray(pointer(value.payload), 1, TENSOR)[0]
    if dl.ndim != 1 or dl.code != 2 or dl.bits != 64:
        return carray(pointer(dl.data), 0, np.float64)
    size = carray(pointer(dl.shape), 1, np.int64)[0]
    if size > 1 and carray(pointer(dl.strides), 1, np.int64)[0] != 1:
        size = 0
    return carray(pointer(dl.data + dl.byte_offset), size, np.float64)


@njit
def number(value):
    """The float in a value."""
    return np.int64(value.payload).view(np.float64)


@cfunc(types.int32(types.voidptr, types.CPointer(from_dtype(VALUE)), types.int32, types.voidptr))
def logistic(handle, args, count, result):
    """`steps` times x = r * x * (1 - x). The values: x, r, steps, and the output to fill."""
    values = carray(args, 4)
    x, out = vector(values[0]), vector(values[3])
    if x.size == 0 or x.size != out.size:
        return 1
    rate, steps = number(values[1]), values[2].payload
    for i in range(x.size):
        population = x[i]
        for _ in range(steps):
            population = rate * population * (1 - population)
        out[i] = population
    return 0


kf.define("numba_demo::logistic(Tensor x, float r, int steps=10) -> Tensor")
kf.impl("numba_demo::logistic", "CPU", logistic)
kf.impl("numba_demo::logistic", "Meta", lambda x, r, steps: kf.empty_like(x))

x = np.array([0.1, 0.2, 0.3])
print("a step:      ", kf.ops.numba_demo.logistic(x, 3.0, 1).round(4))
print("ten:         ", kf.ops.numba_demo.logistic(x, 3.0).round(4))
print("keyfold:     ", type(kf.ops.numba_demo.logistic(kf.from_numpy(x), 2.5)).__name__)
try:
    kf.ops.numba_demo.logistic(x.astype("f4"), 3.0)
except kf.KernelFailed as error:
    print("refused:     ", str(error).split(" (")[0])
