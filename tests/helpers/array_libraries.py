"""Libraries of arrays, each with a way to make an array and to tell its address."""

import warnings

import numpy as np
import pytest

import keyfold as kf


class Numpy:
    name = "numpy"
    kind = np.ndarray
    float64 = np.float64

    def array(self, data):
        return np.asarray(data)

    def address(self, x):
        return x.ctypes.data


class Keyfold:
    name = "keyfold"
    kind = kf.Tensor

    def array(self, data):
        return kf.asarray(np.asarray(data))

    def address(self, x):
        return x.data_ptr()


class Torch:
    name = "torch"

    def __init__(self, module):
        self.module = module
        self.kind = module.Tensor

    def array(self, data):
        return self.module.from_numpy(np.array(data))

    def address(self, x):
        return x.data_ptr()


class Jax:
    name = "jax"

    def __init__(self, module):
        self.module = module
        self.kind = module.Array
        module.config.update("jax_enable_x64", True)

    def array(self, data):
        return self.module.numpy.asarray(np.asarray(data))

    def address(self, x):
        return x.unsafe_buffer_pointer()


class TvmFfi:
    name = "tvm_ffi"

    def __init__(self, module):
        self.module = module
        self.kind = module.Tensor

    def array(self, data):
        return self.module.from_dlpack(np.array(data))

    def address(self, x):
        return x.data_ptr()


class Exchanged:
    """An array of a library of one's own: NumPy memory behind `__dlpack__`, and a namespace."""

    def __init__(self, array):
        self.array = array

    @property
    def shape(self):
        return self.array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return ExchangedNamespace

    def __mul__(self, k):
        return Exchanged(self.array * k)


class ExchangedNamespace:
    @staticmethod
    def from_dlpack(x):
        return Exchanged(np.from_dlpack(x))


class Own:
    name = "own"
    kind = Exchanged

    def array(self, data):
        return Exchanged(np.array(data))

    def address(self, x):
        return x.array.ctypes.data


MAKERS = {
    "numpy": Numpy,
    "keyfold": Keyfold,
    "torch": lambda: Torch(imported("torch")),
    "jax": lambda: Jax(imported("jax")),
    "tvm_ffi": lambda: TvmFfi(imported("tvm_ffi")),
    "own": Own,
}


def imported(name):
    with warnings.catch_warnings():
        # torch warns of its own deprecated things at import.
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} isn't installed")


def to_numpy(x):
    if type(x).__module__.startswith("tvm_ffi"):
        return np.from_dlpack(x)
    return x.array if isinstance(x, Exchanged) else np.asarray(x)
