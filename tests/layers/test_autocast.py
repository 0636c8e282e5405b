"""Autocast: categories, scopes, rules of one's own, and gradients through it."""

import asyncio
import threading

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten


def tensor(dtype, shape=(2, 2)):
    return kf.ones(shape, dtype=dtype)


@pytest.fixture
def probe(lib, ns):
    """An operator of two tensors that notes the dtypes it gets; `probe(category=...)`."""
    lib.define("probe(Tensor x, Tensor y, Tensor[] z=[], int n=1) -> Tensor")
    seen = []

    def kernel(x, y, z, n):
        seen.append([str(a.dtype) for a in (x, y, *z)])
        return y

    lib.impl("probe", kernel, "CPU")
    operator = kf.get_op(f"{ns}::probe")

    def call(*args):
        seen.clear()
        operator(*args)
        return seen[0]

    call.operator = operator
    return call


# Categories


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_are_lowered_and_sums_are_not(dtype):
    x, h = tensor("float32"), tensor(dtype)
    with kf.autocast(dtype):
        assert (x @ x).dtype == dtype
        assert (h @ x).dtype == dtype
        for full in (h.exp(), h.sum(), h.mean(axis=0), kf.log(h), h**2.0, 2.0**h, 2.0 / h):
            assert full.dtype == "float32"
        for widest in (h + x, kf.where(x > 0, h, x), kf.stack([h, x]), kf.concat([x, h])):
            assert widest.dtype == "float32"
        assert (h + h).dtype == dtype
        assert kf.tanh(h).dtype == dtype
        assert (h.T + h.reshape(4)[:2]).dtype == dtype
    assert (x @ x).dtype == "float32"
    assert h.exp().dtype == dtype


def test_float32_means_full_precision():
    h = tensor("float16")
    with kf.autocast(kf.float32):
        assert (h @ h).dtype == "float32"
        assert kf.autocast_dtype() == kf.float32


def test_float64_whole_numbers_and_bools_stay_as_they_are():
    d, f, i = tensor("float64"), tensor("float32"), tensor("int64")
    with kf.autocast("bfloat16"):
        assert (d @ d).dtype == "float64"
        assert (d @ f).dtype == "float64"
        assert (i @ i).dtype == "int64"
        assert (i + i).dtype == "int64"
        assert d.exp().dtype == "float64"
        assert (tensor("bool") + tensor("bool")).dtype == "bool"
    third = kf.full((1, 1), 1 / 3, dtype="float32")
    with kf.autocast("bfloat16"):
        product = kf.ones((1, 1), dtype="float64") @ third
    assert float(product[0, 0]) == float(np.float32(1 / 3)), "not by way of bfloat16"


def test_lowered_numbers_are_rounded_as_the_dtype_rounds():
    x = kf.full((1, 1), 1 / 3, dtype="float32")
    with kf.autocast("float16"):
        product = x @ tensor("float32", (1, 1))
    assert float(product[0, 0]) == float(np.float16(1 / 3))


def test_numpy_arrays_go_through():
    a = np.ones((2, 3), dtype=np.float32)
    with kf.autocast("float16"):
        result = kf.matmul(a, a.T)
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float16
    assert result.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert a.dtype == np.float32


# Scopes


def test_the_innermost_scope_counts():
    x = tensor("float32")
    assert not kf.is_autocast_enabled()
    assert kf.autocast_dtype() is None
    with kf.autocast("float16") as outer:
        assert repr(outer) == "autocast(float16)"
        with kf.autocast("bfloat16"):
            assert (x @ x).dtype == "bfloat16"
            assert kf.autocast_dtype() is kf.bfloat16
            with kf.autocast("bfloat16", enabled=False):
                assert (x @ x).dtype == "float32"
                assert not kf.is_autocast_enabled()
                with kf.autocast("float16"):
                    assert (x @ x).dtype == "float16"
        assert kf.is_autocast_enabled()
        assert (x @ x).dtype == "float16"
        with kf.exclude_keys("Autocast"):
            assert (x @ x).dtype == "float32"
            assert not kf.is_autocast_enabled()


def test_the_key_alone_casts_nothing():
    x = tensor("float32")
    with kf.include_keys("Autocast"):
        assert (x @ x).dtype == "float32"
        assert not kf.is_autocast_enabled()


def test_one_object_can_be_entered_again():
    x, scope = tensor("float32"), kf.autocast("float16")
    for _ in range(2):
        with scope, scope:
            assert (x @ x).dtype == "float16"
    assert (x @ x).dtype == "float32"


def test_an_exception_ends_the_scope():
    with pytest.raises(ZeroDivisionError), kf.autocast("float16"):
        raise ZeroDivisionError
    assert not kf.is_autocast_enabled()


def test_it_decorates_functions_and_coroutines():
    x = tensor("float32")

    @kf.autocast("bfloat16")
    def product(x):
        """The product."""
        return x @ x

    @kf.autocast("bfloat16")
    async def later(x):
        await asyncio.sleep(0)
        return x @ x

    async def both():
        task = asyncio.create_task(later(x))
        await asyncio.sleep(0)
        outside = x @ x
        return (await task).dtype, outside.dtype

    assert product.__name__ == "product"
    assert product.__doc__ == "The product."
    assert product(x).dtype == "bfloat16"
    assert (x @ x).dtype == "float32"
    inside, outside = asyncio.run(both())
    assert inside == "bfloat16"
    assert outside == "float32"


def test_it_refuses_to_decorate_generators():
    def numbers():
        yield 1

    with pytest.raises(TypeError, match=r"autocast\(float16\) can't decorate the generator"):
        kf.autocast("float16")(numbers)


def test_threads_have_scopes_of_their_own():
    x, seen = tensor("float32"), []
    with kf.autocast("float16"):
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert seen == ["float32"]


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "complex64"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(kf.DTypeError) as raised:
        kf.autocast(dtype)
    assert str(raised.value) == (
        f"autocast: dtype {dtype} isn't supported; use one of float16, bfloat16, float32"
    )


def test_what_is_no_dtype_is_refused():
    with pytest.raises(kf.DTypeError, match="float17"):
        kf.autocast("float17")
    with pytest.raises(kf.BindingError, match="a dtype is given as"):
        kf.autocast(16)


# Operators of one's own


def test_without_a_category_the_kernel_gets_the_callers_own_objects(lib, ns):
    lib.define("own(Tensor x) -> Tensor")
    seen = []
    lib.impl("own", lambda x: seen.append(x) or x, "CPU")
    x = np.ones(2, dtype=np.float32)
    with kf.autocast("float16"):
        result = getattr(kf.ops, ns).own(x)
    assert seen[0] is x
    assert result is x


def test_what_an_operator_calls_itself_is_autocast(lib, ns):
    lib.define("square(Tensor x) -> Tensor")
    lib.impl("square", lambda x: x @ x, "CPU")
    with kf.autocast("float16"):
        assert getattr(kf.ops, ns).square(tensor("float32")).dtype == "float16"


@pytest.mark.parametrize(
    ("category", "given", "wanted"),
    [
        ("lower", ["float32", "float16", "bfloat16"], ["bfloat16"] * 3),
        ("lower", ["float32", "int64"], ["bfloat16", "int64"]),
        ("lower", ["float32", "float64"], ["float32", "float64"]),
        ("full", ["float16", "bfloat16", "float64"], ["float32", "float32", "float64"]),
        ("widest", ["float16", "float32", "float32"], ["float32"] * 3),
        ("widest", ["float16", "bool", "float64"], ["float64", "bool", "float64"]),
        ("leave", ["float16", "float32", "float64"], ["float16", "float32", "float64"]),
    ],
)
def test_categories_cast_every_tensor_argument(probe, category, given, wanted):
    handle = kf.register_autocast(probe.operator, category)
    x, y, *z = (tensor(dtype) for dtype in given)
    with kf.autocast("bfloat16"):
        assert probe(x, y, z) == wanted
    assert probe(x, y, z) == given
    assert handle.remove()
    with kf.autocast("bfloat16"):
        assert probe(x, y, z) == given


def test_cast_inputs_is_a_dtype_of_its_own(probe):
    name = probe.operator.name
    handle = kf.register_autocast(name, cast_inputs=kf.float16)
    assert "autocast as float16 (Python" in handle.origin
    assert "test_autocast.py" in handle.origin
    with kf.autocast("bfloat16"):
        assert probe(tensor("float32"), tensor("float64")) == ["float16", "float64"]
    with kf.autocast("bfloat16", enabled=False):
        assert probe(tensor("float32"), tensor("float32")) == ["float32", "float32"]
    kf.register_autocast(name, cast_inputs="float64", override="replace")
    with kf.autocast("bfloat16"):
        assert probe(tensor("float16"), tensor("int64")) == ["float64", "int64"]


def test_an_array_class_that_cannot_be_viewed_is_left_alone(lib, ns, word):
    lib.define("text(Tensor x, Tensor y) -> Tensor")
    lib.impl("text", lambda x, y: x, "CPU")
    kf.register_autocast(f"{ns}::text", "lower")
    x = word("a")
    with kf.autocast("float16"):
        assert getattr(kf.ops, ns).text(x, word("b")) is x


def test_an_argument_that_is_written_is_written_itself(lib, ns):
    lib.define("double_(Tensor(a!) x, Tensor y) -> Tensor(a!)")

    def kernel(x, y):
        assert y.dtype == "float16"
        return x.copy_(y * 2.0)

    lib.impl("double_", kernel, "CPU")
    kf.register_autocast(f"{ns}::double_", "lower")
    x = kf.zeros((2, 2), dtype="float32")
    with kf.autocast("float16"):
        assert getattr(kf.ops, ns).double_(x, tensor("float32")) is x
    assert x.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_an_operator_of_an_isolated_dispatcher_takes_a_category(d):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    kf.register_autocast(d.get_op("f"), "lower")
    with kf.autocast("float16"):
        assert d.call("f", tensor("float32")).dtype == "float16"


def test_explain_shows_the_category():
    with kf.autocast("float16"):
        assert "autocast as lower" in str(
            kf.explain("aten::matmul", tensor("float32"), tensor("int64"))
        )


def test_bad_rules_are_refused(probe):
    op = probe.operator
    with pytest.raises(kf.InvalidValue, match='"lower", "full", "widest", "leave"'):
        kf.register_autocast(op, "lowest")
    with pytest.raises(kf.DTypeError, match="int64"):
        kf.register_autocast(op, cast_inputs="int64")
    with pytest.raises(kf.BindingError, match="not both"):
        kf.register_autocast(op, "lower", cast_inputs="float16")
    with pytest.raises(kf.BindingError, match="neither"):
        kf.register_autocast(op)
    with pytest.raises(TypeError, match="cast_inputs="):
        kf.register_autocast(op, kf.float16)
    with pytest.raises(kf.UnknownOperator, match="did you mean aten::matmul"):
        kf.register_autocast("aten::matmull", "lower")
    kf.register_autocast(op, "lower")
    with pytest.raises(kf.RegistrationError, match="autocast as lower"):
        kf.register_autocast(op, "full")
    with pytest.raises(kf.RegistrationError, match="autocast as lower"):
        kf.register_autocast("aten::matmul", "full")


# Under Autograd


def test_gradients_come_back_in_the_arguments_dtype():
    x = tensor("float32").requires_grad_()
    w = (tensor("float32") * 2.0).requires_grad_()
    with kf.autocast("bfloat16"):
        y = x @ w
        assert y.dtype == "bfloat16"
        loss = y.sum()
    assert loss.dtype == "float32"
    loss.backward()
    assert x.grad.dtype == w.grad.dtype == "float32"
    assert x.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert w.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_leaf_of_a_short_dtype_has_a_short_gradient():
    h = tensor("float16").requires_grad_()
    with kf.autocast("float16"):
        h.exp().sum().backward()
    assert h.grad.dtype == "float16"


def test_training_in_short_numbers_learns():
    random = np.random.default_rng(0)
    x = kf.asarray(random.standard_normal((64, 4)).astype(np.float32))
    target = x @ kf.asarray(np.array([[1.0], [-2.0], [0.5], [3.0]], dtype=np.float32))
    w = kf.zeros((4, 1), dtype="float32").requires_grad_()
    losses = []
    for _ in range(60):
        with kf.autocast("bfloat16"):
            error = x @ w - target
            loss = (error * error).mean()
        (g,) = kf.grad(loss, [w])
        with kf.no_grad():
            w.copy_(w - g * 0.1)
        losses.append(float(loss))
    assert w.dtype == "float32"
    assert losses[-1] < losses[0] / 100


def test_switching_off_needs_no_dtype():
    with kf.autocast("bfloat16"):
        with kf.autocast(enabled=False):
            assert not kf.is_autocast_enabled()
            x = kf.ones((2, 2), dtype="float32")
            assert kf.matmul(x, x).dtype == kf.float32
        assert kf.is_autocast_enabled()
    assert repr(kf.autocast("float16", enabled=False)) == "autocast(float16, enabled=False)"
    with pytest.raises(kf.BindingError, match=r"autocast\(\) needs the argument 'dtype'.*bfloat16"):
        kf.autocast()
    with pytest.raises(kf.DTypeError):
        kf.autocast("int32", enabled=False)


def test_a_bfloat16_result_for_numpy_says_what_to_do():
    x = np.ones((2, 2), np.float32)
    with kf.autocast("bfloat16"):
        with pytest.raises(kf.DTypeError, match=r"NumPy has no.*bfloat16.*asarray.*float16"):
            kf.matmul(x, x)
        assert kf.matmul(kf.asarray(x), kf.asarray(x)).dtype == kf.bfloat16
    with kf.autocast("float16"):
        assert kf.matmul(x, x).dtype == np.float16
