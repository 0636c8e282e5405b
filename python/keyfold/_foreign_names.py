"""Names that people know from PyTorch and NumPy, and what they are called here.

Tables of the module's names and of a tensor's attributes, and the errors that are made of them. A
name that is in none gets the nearest name that there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyfold import _core
from keyfold._default import dispatcher as _default

__all__ = ["attribute_error", "teach", "teach_tensor"]

# The spelling here of a name that the module lacks.
_MODULE = {
    "Adam": "keyfold.optim.Adam",
    "AdamW": "keyfold.optim.Adam with decoupled=True",
    "DispatchKeys": "keyfold.DispatchKey",
    "Function": "keyfold.register_autograd",
    "KeySet": "keyfold.DispatchKeySet",
    "SGD": "keyfold.optim.SGD",
    "absolute": "keyfold.abs",
    "amax": "keyfold.max",
    "amin": "keyfold.min",
    "array": "keyfold.asarray",
    "as_tensor": "keyfold.asarray",
    "attention": "keyfold.scaled_dot_product_attention",
    "autograd": "keyfold.grad or keyfold.register_autograd",
    "bitwise_not": "keyfold.bitwise_invert",
    "bmm": "keyfold.matmul",
    "cat": "keyfold.concat",
    "cdouble": "keyfold.complex128",
    "cfloat": "keyfold.complex64",
    "cholesky": "keyfold.linalg.cholesky",
    "clamp": "keyfold.clip",
    "compile": "keyfold.trace or keyfold.elementwise",
    "concatenate": "keyfold.concat",
    "cross": "keyfold.linalg.cross",
    "cuda": 'keyfold.Device("cuda")',
    "cumprod": "keyfold.cumulative_prod",
    "cumsum": "keyfold.cumulative_sum",
    "det": "keyfold.linalg.det",
    "device": "keyfold.Device",
    "diagonal": "keyfold.linalg.diagonal",
    "div": "keyfold.divide",
    "dot": "keyfold.matmul",
    "double": "keyfold.float64",
    "dtype": "keyfold.DType",
    "eigh": "keyfold.linalg.eigh",
    "einsum": "keyfold.tensordot, keyfold.vecdot or keyfold.matmul",
    "eq": "keyfold.equal",
    "float": "keyfold.float32 or keyfold.float64",
    "from_array": "keyfold.asarray",
    "ge": "keyfold.greater_equal",
    "gt": "keyfold.greater",
    "half": "keyfold.float16",
    "index_select": "keyfold.take",
    "inference_mode": "keyfold.no_grad",
    "int": "keyfold.int32 or keyfold.int64",
    "inv": "keyfold.linalg.inv",
    "inverse": "keyfold.linalg.inv",
    "invert": "keyfold.bitwise_invert",
    "jit": "keyfold.trace",
    "kernel": "keyfold.impl",
    "le": "keyfold.less_equal",
    "library": "keyfold.Library, keyfold.define or keyfold.impl",
    "long": "keyfold.int64",
    "lt": "keyfold.less",
    "mm": "keyfold.matmul",
    "mod": "keyfold.remainder",
    "mul": "keyfold.multiply",
    "ndarray": "keyfold.Tensor",
    "ne": "keyfold.not_equal",
    "neg": "keyfold.negative",
    "norm": "keyfold.linalg.vector_norm or keyfold.linalg.matrix_norm",
    "op": "keyfold.define or keyfold.custom_op",
    "permute": "keyfold.permute_dims",
    "pinv": "keyfold.linalg.pinv",
    "power": "keyfold.pow",
    "profiler": "keyfold.profile",
    "qr": "keyfold.linalg.qr",
    "register": "keyfold.define or keyfold.impl",
    "register_kernel": "keyfold.impl",
    "relu6": "keyfold.hardtanh(x, 0, 6)",
    "seed": "keyfold.manual_seed",
    "short": "keyfold.int16",
    "slogdet": "keyfold.linalg.slogdet",
    "solve": "keyfold.linalg.solve",
    "sub": "keyfold.subtract",
    "svd": "keyfold.linalg.svd",
    "swapaxes": "keyfold.permute_dims",
    "swish": "keyfold.silu",
    "t": "keyfold.matrix_transpose",
    "tensor": "keyfold.asarray",
    "transpose": "keyfold.permute_dims or keyfold.matrix_transpose",
    "true_divide": "keyfold.divide",
    "unsqueeze": "keyfold.expand_dims",
}

_NETWORKS = "the functions of networks are in keyfold itself, such as keyfold.conv2d and "
_NETWORKS += "keyfold.layer_norm; it has no modules, and parameters are tensors that require grad"

# Names without a counterpart here, with the reason.
_ABSENT = {
    "Module": _NETWORKS,
    "Parameter": "a parameter is a tensor that requires grad: keyfold.asarray(x).requires_grad_()",
    "cross_entropy": "take the mean of -keyfold.log_softmax(logits) at the labels, which "
    "keyfold.ops.aten.gather picks",
    "enable_grad": "gradients are recorded wherever keyfold.no_grad() isn't open",
    "load": "a tensor is loaded with Python's pickle or numpy.load",
    "functional": _NETWORKS,
    "mse_loss": "write keyfold.mean(keyfold.square(x - y))",
    "nn": _NETWORKS,
    "save": "a tensor is saved with Python's pickle or numpy.save",
}

# The spelling here of an attribute that a tensor `x` lacks.
_TENSOR = {
    "add": "x + y",
    "add_": "x += y",
    "amax": "x.max",
    "amin": "x.min",
    "astype": "x.to(dtype)",
    "bool": 'x.to("bool")',
    "clamp": "keyfold.clip(x, min, max)",
    "copy": "x.clone()",
    "cuda": 'x.to("cuda")',
    "cumprod": "keyfold.cumulative_prod(x, axis)",
    "cumsum": "keyfold.cumulative_sum(x, axis)",
    "data": "x.detach()",
    "dim": "x.ndim",
    "div": "x / y",
    "dot": "x @ y",
    "double": 'x.to("float64")',
    "flatten": "x.reshape((-1,))",
    "float": 'x.to("float32")',
    "half": 'x.to("float16")',
    "int": 'x.to("int32")',
    "log_softmax": "keyfold.log_softmax(x)",
    "long": 'x.to("int64")',
    "masked_fill": "keyfold.masked_fill(x, mask, value)",
    "matmul": "x @ y",
    "mm": "x @ y",
    "mul": "x * y",
    "mul_": "x *= y",
    "ndimension": "x.ndim",
    "neg": "-x",
    "nelement": "x.numel()",
    "ravel": "x.reshape((-1,))",
    "storage_offset": "x.offset",
    "stride": "x.strides",
    "sub": "x - y",
    "sub_": "x -= y",
    "swapaxes": "x.transpose(axis0, axis1)",
    "t": "x.mT",
    "type": "x.dtype",
    "view": "x.reshape",
    "zero_": "x.fill_(0)",
}


def attribute_error(name: str, known: list[str], module: str = "keyfold") -> AttributeError:
    """Return the error for a name that a module of keyfold doesn't have.

    Args:
        name: the name.
        known: the module's names.
        module: the module's own name.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name in _ABSENT:
        return AttributeError(f"{text}; {_ABSENT[name]}", obj=None)
    meant = _MODULE.get(name)
    if meant is None and not name.startswith("_"):
        import difflib

        folded = {candidate.lower(): f"{module}.{candidate}" for candidate in known}
        near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
        if name in dir(_default.ops.aten):
            meant = f"the operator keyfold.ops.aten.{name}"
        elif near:
            meant = folded[near[0]]
    # With `obj` CPython adds no suggestion of its own.
    return AttributeError(text if meant is None else f"{text}; did you mean {meant}?", obj=None)


class _Foreign:
    """An attribute that a class doesn't have, with advice in its error.

    A descriptor and no `__getattr__` of the class: that would make every attribute of an object
    slower to reach. `hasattr` is False as it was.
    """

    __slots__ = ("_advice", "_name")

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"Not an attribute; {self._advice}"

    def __get__(self, instance: object, owner: type) -> Any:
        title = f"{owner.__module__}.{owner.__qualname__}"
        raise AttributeError(
            f"{title!r} object has no attribute {self._name!r}; {self._advice}", obj=None
        )


def _own_dir(instance: object) -> list[str]:
    """The attributes that an object has."""
    members = {name: value for cls in type(instance).__mro__ for name, value in vars(cls).items()}
    return [
        name for name in object.__dir__(instance) if not isinstance(members.get(name), _Foreign)
    ]


def teach(cls: type, advice: Mapping[str, str]) -> None:
    """Let the objects of a class answer for attributes that other libraries' have.

    Args:
        cls: the class; what it has stays.
        advice: what the error of each name says to do, behind "has no attribute".
    """
    for name, text in advice.items():
        if not hasattr(cls, name):
            setattr(cls, name, _Foreign(name, text))
    cls.__dir__ = _own_dir  # type: ignore[method-assign, assignment]


def teach_tensor() -> None:
    """Let `keyfold.Tensor` answer for the names that other libraries' arrays have."""
    teach(_core.Tensor, {name: f"write {meant}" for name, meant in _TENSOR.items()})
