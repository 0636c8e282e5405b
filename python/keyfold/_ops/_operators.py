"""The functions that call one operator each, made from the operators' rows.

They take what the operators take, tensors and arrays of other libraries, and give results of the
caller's own library. Python numbers may stand on either side of an operator of two operands. An
`axis` may be given as `dim`, PyTorch's name; `keepdims` as `keepdim`. Their types are in the stub
beside this file, which is printed from the rows, too.
"""

from keyfold import _core

_functions = _core._functions()
globals().update(_functions)

__all__ = sorted(_functions)
