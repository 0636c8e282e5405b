"""Forms of schemas: `Tensor! x`, `Any`, `int[1]`; and dtypes, which every kernel gets alike."""

import numpy as np
import pytest

import keyfold as kf


def define(lib, ns, schema, kernel, key="CPU"):
    lib.define(schema)
    name = schema.split("(")[0]
    lib.impl(name, kernel, key)
    return getattr(kf.ops, ns).__getattr__(name)


def test_a_written_tensor_needs_no_set_of_its_own(lib, ns):
    def fill(x, y):
        x[...] = y

    op = define(lib, ns, "fill(Tensor! x, Tensor y) -> ()", fill)
    assert str(op.schema) == f"{ns}::fill(Tensor(a0!) x, Tensor y) -> ()"
    x = np.zeros(3)
    assert op(x, np.arange(3.0)) is None
    assert x.tolist() == [0, 1, 2]
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        op(x, np.ones(3))


def test_a_returned_tensor_names_its_set(lib):
    with pytest.raises(kf.SchemaError, match="doesn't say which argument it is"):
        lib.define("f(Tensor! x) -> Tensor!")


OBJECTS = [None, True, 3, 2.5, 1j, "text", b"bytes", [1, 2], {"a": 1}, object(), len, 2**80, ()]


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: type(given).__name__)
def test_any_hands_on_whatever_is_given(lib, ns, given):
    seen = []
    op = define(lib, ns, "f(Tensor x, Any y=1) -> Tensor", lambda x, y: seen.append(y) or x)
    x = kf.zeros(2)
    op(x, given)
    op(x, y=given)
    with kf.profile():
        op(x, given)
    op(kf.asarray([1.0], copy=True).requires_grad_(), given)
    kf.vmap(lambda row: op(row, given))(kf.zeros((1, 2)))
    assert len(seen) == 5
    for got in seen:
        assert got is given or (type(got) is type(given) and got == given)
    op(x)
    assert seen[-1] == 1


def test_any_takes_no_array(lib, ns):
    op = define(lib, ns, "f(Tensor x, Any y) -> Tensor", lambda x, y: x)
    for array in (kf.zeros(1), np.zeros(1)):
        with pytest.raises(kf.BindingError, match=r"'y' must be Any, not .*as a Tensor"):
            op(kf.zeros(2), array)


def test_any_is_returned(lib, ns):
    op = define(lib, ns, "f(Tensor x) -> Any", lambda x: {"ndim": x.ndim})
    assert op(np.zeros((2, 3))) == {"ndim": 2}


def test_one_value_or_a_list_of_any_length(lib, ns):
    seen = []
    op = define(
        lib, ns, "f(Tensor x, int[1] dim=[-2, -1]) -> Tensor", lambda x, dim: seen.append(dim) or x
    )
    x = kf.zeros(2)
    for given in (0, [0], (0, 1), [], [1, 2, 3]):
        op(x, given)
    op(x)
    assert seen == [[0], [0], (0, 1), [], [1, 2, 3], [-2, -1]]
    for wrong in (1.5, "0", [0, 1.5], None):
        with pytest.raises(kf.BindingError, match=r"'dim' must be int\[1\]"):
            op(x, wrong)


DTYPES = ["float32", kf.float32, np.float32, np.dtype("float32"), np.dtype(">f4").newbyteorder("=")]


@pytest.mark.parametrize("given", DTYPES, ids=lambda given: type(given).__name__)
def test_every_kernel_gets_a_dtype_of_keyfolds(lib, ns, given):
    seen = []

    def kernel(x, first, second=None, *, third=None):
        seen.append((first, second, third))
        return x

    schema = (
        "f(Tensor x, ScalarType first, ScalarType? second=None, *, ScalarType third=int8) -> Tensor"
    )
    op = define(lib, ns, schema, kernel)
    x = kf.zeros(2)
    op(x, given)
    op(x, given, given, third=given)
    op.redispatch(kf.DispatchKeySet("CPU"), x, given, None)
    kf.vmap(lambda row: op(row, given, given))(kf.zeros((1, 2)))
    for got in seen:
        for dtype in got:
            assert dtype is None or type(dtype) is kf.DType
    assert seen[0] == (kf.float32, None, kf.int8)
    assert seen[1] == (kf.float32,) * 3


def test_what_is_no_dtype_is_refused(lib, ns):
    op = define(lib, ns, "f(Tensor x, ScalarType dtype) -> Tensor", lambda x, dtype: x)
    with pytest.raises(kf.BindingError, match="'dtype' must be ScalarType"):
        op(kf.zeros(1), 3)
    with pytest.raises(kf.DTypeError, match="flaot32"):
        op(kf.zeros(1), "flaot32")
