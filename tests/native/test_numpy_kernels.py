"""`impl(..., arrays="numpy")`: functions of NumPy arrays as kernels, numba's among them."""

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def op(lib, ns, seen):
    """An operator whose CPU kernel knows NumPy alone, and notes what it got."""

    def kernel(x, sizes, *, dtype, scale):
        seen.append((x, sizes, dtype, scale))
        return np.broadcast_to(x * scale, sizes).astype(dtype)

    lib.define(
        "spread(Tensor x, int[] sizes, *, ScalarType dtype=float64, float scale=1.0) -> Tensor"
    )
    lib.impl("spread", kernel, "CPU", arrays="numpy")
    return getattr(kf.ops, ns).spread


def test_the_kernel_gets_numpys_of_everything(op, seen):
    x = kf.asarray([1.0, 2.0])
    result = op(x, [3, 2], dtype="float32", scale=2.0)
    assert isinstance(result, kf.Tensor)
    assert (result.shape, str(result.dtype)) == ((3, 2), "float32")
    ((array, sizes, dtype, scale),) = seen
    assert type(array) is np.ndarray
    assert array.ctypes.data == x.data_ptr()
    assert (sizes, dtype, scale) == ((3, 2), np.dtype("float32"), 2.0)


def test_the_result_is_of_the_callers_library(op, seen):
    x = np.ones(2)
    assert type(op(x, (2,))) is np.ndarray
    assert seen[0][0] is x


def test_layers_work_above_it(op):
    x = kf.asarray(np.arange(6.0).reshape(2, 3))
    batched = kf.vmap(lambda row: op(row, [2, 3]))(x)
    np.testing.assert_array_equal(batched.numpy(), x.numpy()[:, None].repeat(2, 1))
    graph = kf.trace(lambda x: op(x, [2, 3], scale=3.0), x)
    np.testing.assert_array_equal(graph(x).numpy(), x.numpy() * 3)
    x = kf.asarray([1.0, 2.0], copy=True).requires_grad_()
    with kf.no_grad():
        assert op(x, [2]).tolist() == [1, 2]


class Wrapped:
    """An array class that has DLPack's protocol alone."""

    def __init__(self, data):
        self.data = np.asarray(data)

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def test_arrays_of_other_libraries_come_without_a_copy(op, seen):
    data = np.array([1.0, 2.0])
    op(Wrapped(data), [2])
    assert type(seen[0][0]) is np.ndarray
    assert seen[0][0].ctypes.data == data.ctypes.data


def test_what_it_writes_is_written(lib, ns):
    def fill(x, parts):
        x[...] = 7
        for part in parts:
            part += 1

    lib.define("fill(Tensor! x, Tensor![] parts) -> ()")
    lib.impl("fill", fill, "CPU", arrays="numpy")
    x, part = kf.zeros(2), kf.zeros(1)
    getattr(kf.ops, ns).fill(x, [part, part])
    assert (x.tolist(), part.tolist()) == ([7, 7], [2])


def test_numbers_stand_for_tensors_without_dimensions(lib, ns):
    lib.define("both(Tensor x) -> (Tensor, float)")
    lib.impl("both", lambda x: (float(x.sum()), float(x.sum())), "CPU", arrays="numpy")
    total, number = getattr(kf.ops, ns).both(kf.ones(3))
    assert (total.shape, total.item()) == ((), 3.0)
    assert type(number) is float


def test_the_key_set_comes_first(lib, ns, seen):
    lib.define("keyed(Tensor x) -> Tensor")
    kernel = lambda keys, x: seen.append((keys, type(x))) or x * 2  # noqa: E731
    lib.impl("keyed", kernel, "CPU", arrays="numpy", with_keyset=True)
    assert getattr(kf.ops, ns).keyed(kf.ones(1)).tolist() == [2]
    ((keys, kind),) = seen
    assert "CPU" in keys
    assert kind is np.ndarray


def test_it_is_a_decorator_and_shows_the_function(lib, ns):
    with kf.Library(ns) as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU", arrays="numpy")
    assert getattr(kf.ops, ns).twice(kf.ones(1)).tolist() == [2]
    library.close()
    with kf.Dispatcher() as d:
        d.define("twice(Tensor x) -> Tensor")

        @d.impl("twice", "CPU", arrays="numpy")
        def twice(x):
            return x + x

        assert twice(3) == 6
        (entry,) = d.get_op("twice").table().values()
        assert "twice" in entry.origin
        assert "test_numpy_kernels.py" in entry.origin
        assert d.get_op("twice").kernels["CPU"].__wrapped__ is twice
        assert d.ops.twice(kf.ones(1)).tolist() == [2]


def test_the_signature_is_checked(lib):
    lib.define("checked(Tensor x) -> Tensor")
    with pytest.raises(kf.RegistrationError, match="contradicts the schema"):
        lib.impl("checked", lambda x, y: x, "CPU", arrays="numpy")


def test_other_kinds_are_refused(lib):
    lib.define("refused(Tensor x) -> Tensor")
    with pytest.raises(kf.InvalidValue, match="'torch'"):
        lib.impl("refused", lambda x: x, "CPU", arrays="torch")
    with pytest.raises(kf.BindingError, match="takes a Python function"):
        lib.impl("refused", kf.fallthrough, "Profiler", arrays="numpy")


def test_a_tensor_elsewhere_isnt_copied(lib, ns):
    lib.define("here(Tensor x) -> Tensor")
    lib.impl("here", lambda x: x, "Meta", arrays="numpy")
    with pytest.raises(kf.DeviceError, match="meta"):
        getattr(kf.ops, ns).here(kf.empty(2, device="meta"))


def test_a_function_of_numba_is_a_kernel(lib, ns, numba):
    @numba.njit
    def logistic(x, rate, steps):
        out = np.empty_like(x)
        for i in range(x.size):
            population = x[i]
            for _ in range(steps):
                population = rate * population * (1 - population)
            out[i] = population
        return out

    lib.define("logistic(Tensor x, float rate=3.5, int steps=10) -> Tensor")
    lib.impl("logistic", logistic, "CPU", arrays="numpy")
    x = np.linspace(0.1, 0.9, 5)
    op = getattr(kf.ops, ns).logistic
    expected = logistic.py_func(x, 3.5, 10)
    np.testing.assert_allclose(op(kf.asarray(x)).numpy(), expected)
    np.testing.assert_allclose(op(x), expected)
    np.testing.assert_allclose(kf.vmap(op)(kf.stack([kf.asarray(x)] * 2))[1].numpy(), expected)
    assert "logistic" in getattr(kf.ops, ns).logistic.kernels["CPU"].__wrapped__.__name__


def test_numba_takes_tuples_and_gives_numbers(lib, ns, numba):
    @numba.njit
    def weighted(parts, weights):
        total = 0.0
        for i in range(len(parts)):
            total += parts[i].sum() * weights[i]
        return total

    lib.define("weighted(Tensor[] parts, float[] weights) -> Tensor")
    lib.impl("weighted", weighted, "CPU", arrays="numpy")
    op = getattr(kf.ops, ns).weighted
    result = op([kf.ones(2), kf.ones(2)], [2.0, 3.0])
    assert (result.shape, result.item()) == ((), 10.0)


def test_a_tensor_of_a_dtype_that_numpy_lacks_is_refused_by_name(op):
    x = kf.asarray([1.0, 2.0]).to("bfloat16")
    says = r"::spread\(\) argument 'x' is a tensor of bfloat16, which NumPy lacks.*astype"
    with pytest.raises(kf.DTypeError, match=says):
        op(x, [2])
