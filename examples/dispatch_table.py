"""A table over axes: softplus for each dtype and layout, registered as an operator's CPU kernel.

The dispatch key picks the table, and the table the function. In float16 it is computed in float32;
arrays in a row go to a function that makes one array for all its steps, the rest to a plain one.
"""

import numpy as np
from numpy.typing import NDArray

import keyfold as kf

Array = NDArray[np.floating]

table = kf.DispatchTable(
    "softplus",
    device=["cpu"],
    dtype=["float16", "float32", "float64", "int64"],
    contiguity=["contiguous", "strided"],
)


@table.impl(dtype=["float32", "float64"])
def softplus_any(x: Array) -> Array:
    """log(1 + exp(x)) without an overflow, for any layout."""
    x = np.asarray(x)
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@table.impl(dtype=["float32", "float64"], contiguity="contiguous")
def softplus_in_a_row(x: Array) -> Array:
    """The same with one array for all steps."""
    x = np.asarray(x)
    y = np.abs(x)
    np.exp(np.negative(y, out=y), out=y)
    np.log1p(y, out=y)
    y += np.maximum(x, 0)
    return y


@table.impl(dtype="float16")
def softplus_half(x: Array) -> Array:
    """Half precision computes in float32."""
    y: Array = table(np.asarray(x).astype("float32"))
    return y.astype("float16")


kf.define("table_demo::softplus(Tensor x) -> Tensor")
kf.impl("table_demo::softplus", "CPU", table)
kf.impl("table_demo::softplus", "Meta", lambda x: kf.empty_like(x))

x = np.linspace(-2.0, 2.0, 5)
print(table)
print("called:   ", kf.ops.table_demo.softplus(x).round(4))
print("half:     ", kf.ops.table_demo.softplus(x.astype("float16")).round(3))
print("strided:  ", table.select(**table.coordinates(x[::2])).__name__)
print("in a row: ", table.select(contiguity="contiguous", dtype="float32", device="cpu").__name__)
try:
    kf.ops.table_demo.softplus(np.arange(3))
except kf.MissingKernel as error:
    print("refused:  ", error)

more = table.with_(lambda x: table(np.asarray(x).astype("float64")), dtype="int64")
print(
    "a copy:   ", more(np.arange(3)).round(4), f"covers {len(more)}, the table still {len(table)}"
)
