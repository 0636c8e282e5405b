"""Arrays of ml_dtypes as arguments and results of plans: bfloat16 and 8-bit floats, without copies.

NumPy has no dtypes of its own for these, and keyfold's tensors have bfloat16 alone: 8-bit floats
are bytes there. ml_dtypes is imported where one of its arrays is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import DTypeError
from keyfold.cudnn._base import label, matching
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["bits_of", "narrow_name", "narrow_tensors", "run"]

# The integers of the same size.
_BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}

# DLPack's codes of dtypes, and the byte of a DLManagedTensorVersioned that has it: behind the
# version, the context, the deleter and the flags (32 bytes), the address (8), the device (8) and
# the number of dimensions (4).
_UNSIGNED, _BFLOAT = 1, 4
_CODE_AT = 52


def narrow_name(array: Any) -> str | None:
    """The name of the dtype of an array or number of ml_dtypes, where graphs have it."""
    if isinstance(array, np.ndarray | np.generic) and array.dtype.name in _BITS:
        return array.dtype.name
    return None


def bits_of(array: Any) -> Any:
    """The same memory as an array of unsigned integers."""
    return array.view(_BITS[array.dtype.name])


def narrow_tensors(plan: _core.Plan) -> dict[GraphTensor, str]:
    """The inputs and outputs of a plan that ml_dtypes has dtypes for."""
    types = {tensor: tensor.data_type for tensor in (*plan.inputs, *plan.outputs)}
    return {tensor: name for tensor, name in types.items() if name in _BITS}


def run(
    plan: _core.Plan,
    narrow: Mapping[GraphTensor, str],
    tensors: Any,
    out: Any,
) -> dict[GraphTensor, Any]:
    """Run a plan with narrow tensors on arrays some of which may be of ml_dtypes.

    Where one is, and none is a tensor of keyfold's, all results are NumPy's arrays, and narrow ones
    of ml_dtypes.

    Raises:
        DTypeError: an array is of another of these dtypes than its tensor; or a bfloat16 result
            would have to be an array of NumPy's.
    """
    if not isinstance(tensors, dict) or not isinstance(out, dict | None):
        return plan(tensors, out)  # Which refuses them.
    taken = _taken(narrow, tensors, plan.inputs)
    written = None if out is None else _taken(narrow, out, plan.outputs)
    given = {tensor: array for key, array in (out or {}).items() if (tensor := _one(key, plan))}
    arrays = [*tensors.values(), *(out or {}).values()]
    if any(isinstance(array, _core.Tensor) for array in arrays):
        results = plan(taken, written)
    elif any(map(narrow_name, arrays)):
        made = plan(taken, written)
        results = {
            tensor: array if tensor in given else _narrow_array(array, narrow.get(tensor))
            for tensor, array in made.items()
        }
    else:
        if any(isinstance(array, np.ndarray) for array in arrays):
            _refuse_bfloat16([one for one in plan.outputs if one not in given], narrow)
        results = plan(tensors, out)
    return results | given


def _one(key: Any, plan: _core.Plan) -> GraphTensor | None:
    """The output that a key means, if it is one."""
    meant = matching(key, plan.outputs)
    return meant[0] if len(meant) == 1 else None


def _taken(
    narrow: Mapping[GraphTensor, str], arrays: dict[Any, Any], there: tuple[GraphTensor, ...]
) -> dict[Any, Any]:
    """The same arrays, those of ml_dtypes as tensors of keyfold's over the same memory."""
    taken = dict(arrays)
    for key, array in arrays.items():
        name = narrow_name(array)
        if name is None:
            continue
        for tensor in matching(key, there):
            if narrow.get(tensor) != name:
                raise DTypeError(
                    f"plan(): {label(tensor)} is of {tensor.data_type}, and its array of {name}"
                )
        if isinstance(array, np.generic):
            taken[key] = float(array)
        else:
            bits = _core.from_numpy(bits_of(array))
            taken[key] = _recast(bits, _BFLOAT) if name == "bfloat16" else bits
    return taken


def _narrow_array(tensor: Any, name: str | None) -> Any:
    """A result as an array, of ml_dtypes where it is narrow."""
    if name is None or not isinstance(tensor, _core.Tensor):
        return np.asarray(tensor)
    import ml_dtypes

    bits = _recast(tensor, _UNSIGNED) if name == "bfloat16" else tensor
    return np.asarray(bits).view(getattr(ml_dtypes, name))


def _recast(tensor: _core.Tensor, code: int) -> _core.Tensor:
    """The same memory under a dtype of the same size: uint16 and bfloat16.

    DLPack says both by a code, which is changed on the way from a tensor to the next.
    """
    import ctypes

    # A function of our own: the types of `ctypes.pythonapi`'s are everybody's.
    signature = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = signature(("PyCapsule_GetPointer", ctypes.pythonapi))
    capsule = tensor.__dlpack__(max_version=(1, 0))
    ctypes.c_uint8.from_address(address(capsule, b"dltensor_versioned") + _CODE_AT).value = code
    return _core.from_dlpack(capsule)


def _refuse_bfloat16(outputs: list[GraphTensor], narrow: Mapping[GraphTensor, str]) -> None:
    """Refuse a run on NumPy's arrays that would make arrays of bfloat16."""
    for tensor in outputs:
        if narrow.get(tensor) == "bfloat16":
            raise DTypeError(
                f"plan(): {label(tensor)} is of bfloat16, which NumPy has no dtype for: give "
                "tensors (keyfold.asarray(x)), give its array in out= (of ml_dtypes.bfloat16), or "
                'make it another (set_data_type("float32"))'
            )
