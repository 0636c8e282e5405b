"""`custom_op`: functions as operators, what is registered through them, and how it goes again."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def scale(ns):
    """An operator of NumPy code, which knows nothing of meta tensors."""

    def scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        """K times x."""
        return np.asarray(x) * k

    with kf.custom_op(f"{ns}::scale", scale, mutates_args=()) as op:
        yield op


def test_a_function_becomes_an_operator(ns):
    @kf.custom_op(f"{ns}::add_scaled", mutates_args=())
    def add_scaled(x: np.ndarray, y: kf.Tensor | None = None, *, k: float = 1.0) -> np.ndarray:
        """Sum, scaled."""
        return x * k if y is None else (x + y) * k

    with add_scaled as op:
        assert op.name == f"{ns}::add_scaled"
        assert op.schema == f"{ns}::add_scaled(Tensor x, Tensor? y=None, *, float k=1.0) -> Tensor"
        assert op.operator is kf.get_op(op.name)
        assert repr(op) == f"<CustomOp {op.schema}>"
        found = op(np.ones(2), k=3.0)
        assert type(found) is np.ndarray
        assert found.tolist() == [3.0, 3.0]
        assert op(np.ones(2), np.ones(2)).tolist() == [2.0, 2.0]
        assert getattr(kf.ops, ns).add_scaled(np.ones(1)).tolist() == [1.0]
        assert isinstance(op(kf.ones(2)), kf.Tensor)


def test_it_looks_like_its_function(scale):
    assert callable(scale)
    assert scale.__name__ == "scale"
    assert scale.__doc__ == "K times x."
    assert list(inspect.signature(scale).parameters) == ["x", "k"]
    assert scale.function is inspect.unwrap(scale)


def test_a_call_that_does_not_bind_is_the_operators_error(scale):
    with pytest.raises(kf.BindingError, match=r"missing 1 required positional argument: 'x'"):
        scale()


def test_the_function_is_the_kernel_of_every_backend(scale, npu):
    table = scale.operator.table()
    for key in ("CPU", "CUDA", str(npu)):
        assert table[key].kernel is scale.function
        assert table[key].rule == "CompositeExplicitAutograd"
    assert "AutogradCPU" not in table


def test_device_types_and_keys_say_where_the_function_is_the_kernel(ns):
    def f(x: kf.Tensor) -> kf.Tensor:
        return x + 1

    for number, (given, expected) in enumerate(
        [
            ({"device_types": "cpu"}, ["CPU"]),
            ({"device_types": ["cpu", "cuda"]}, ["CPU", "CUDA"]),
            ({"device_types": kf.Device("cpu")}, ["CPU"]),
            ({"keys": "CompositeImplicitAutograd"}, ["CompositeImplicitAutograd"]),
            ({"keys": [kf.DispatchKey.CPU, "AutogradCUDA"]}, ["CPU", "AutogradCUDA"]),
        ]
    ):
        with kf.custom_op(f"{ns}::f{number}", f, mutates_args=(), **given) as op:
            assert sorted(op.operator.kernels) == sorted(expected)


def test_an_unknown_device_or_key_registers_nothing(ns):
    def f(x: kf.Tensor) -> kf.Tensor: ...

    with pytest.raises(kf.DeviceError, match='unknown device type "gpu"'):
        kf.custom_op(f"{ns}::f", f, mutates_args=(), device_types="gpu")
    with pytest.raises(kf.UnknownKey):
        kf.custom_op(f"{ns}::f", f, mutates_args=(), keys=["CPU", "Nowhere"])
    with pytest.raises(TypeError, match="give device_types or keys, not both"):
        kf.custom_op(f"{ns}::f", f, mutates_args=(), keys="CPU", device_types="cpu")
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::f")


def test_a_composite_implicit_function_has_the_derivative_of_what_it_calls(ns):
    def f(x: kf.Tensor) -> kf.Tensor:
        return kf.exp(x) * 2.0

    with kf.custom_op(f"{ns}::f", f, mutates_args=(), keys="CompositeImplicitAutograd") as op:
        assert kf.grad(lambda x: op(x).sum())(kf.zeros(2)).tolist() == [2.0, 2.0]


def test_a_schema_can_be_given(ns):
    def f(x, k): ...

    for text in ("(Tensor x, int k) -> ()", f"{ns}::f(Tensor x, int k) -> ()"):
        with kf.custom_op(f"{ns}::f", f, mutates_args=(), schema=text) as op:
            assert op.schema == f"{ns}::f(Tensor x, int k) -> ()"
            assert op(np.ones(1), 2) is None


def test_a_schema_of_another_name_is_refused(ns):
    with pytest.raises(kf.SchemaError, match=f"the schema is of '{ns}::g'"):
        kf.custom_op(f"{ns}::f", lambda x: x, mutates_args=(), schema=f"{ns}::g(Tensor x) -> ()")


@pytest.mark.parametrize(
    ("schema", "mutates_args", "says"),
    [
        ("(Tensor(a!) x) -> ()", (), "mutates_args names none, and the schema marks x"),
        ("(Tensor x) -> ()", ("x",), "mutates_args names x, and the schema marks none"),
    ],
)
def test_schema_and_mutates_args_must_agree(ns, schema, mutates_args, says):
    with pytest.raises(kf.SchemaError, match=says):
        kf.custom_op(f"{ns}::f", lambda x: None, mutates_args=mutates_args, schema=schema)
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::f")


def test_names_without_a_namespace_are_refused():
    with pytest.raises(kf.SchemaError, match="has no namespace"):
        kf.custom_op("f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    with pytest.raises(TypeError, match="takes a name"):
        kf.custom_op(lambda x: x, mutates_args=())


# Writing to arguments.


def test_an_operator_writes_to_the_arguments_that_it_names(ns):
    def fill(x: np.ndarray, value: float) -> None:
        np.asarray(x)[...] = value

    with kf.custom_op(f"{ns}::fill", fill, mutates_args=("x",)) as op:
        assert op.schema == f"{ns}::fill(Tensor(a!) x, float value) -> ()"
        x = np.zeros(3)
        assert op(x, 2.0) is None
        assert x.tolist() == [2.0, 2.0, 2.0]
        # Nothing stands between: there is nothing that it could return.
        assert kf.get_kernel(op.name, "CPU").function is op.function
        assert kf.infer_meta(op.name, x, 2.0) is None
        kf.opcheck(op.operator, (np.zeros(3), 2.0))


@pytest.mark.parametrize("how", ["alone", "in a tuple", "by keyword"])
def test_a_writing_operator_must_not_return_its_argument(ns, how):
    def bump(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    def bump_two(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x += 1
        return x.copy(), x

    function = bump_two if how == "in a tuple" else bump
    with kf.custom_op(f"{ns}::bump", function, mutates_args=("x",)) as op:
        with pytest.raises(kf.KernelReturnError, match="returned one of its arguments") as raised:
            op(x=np.ones(2)) if how == "by keyword" else op(np.ones(2))
        assert f"{ns}::bump" in str(raised.value)
        assert "Tensor(a!) x) -> Tensor(a!)" in str(raised.value)


def test_a_writing_operator_may_return_something_else(ns):
    def bump(x: np.ndarray, k: int) -> tuple[np.ndarray, int]:
        x += k
        return x.copy(), k

    with kf.custom_op(f"{ns}::bump", bump, mutates_args=("x",)) as op:
        assert op(np.ones(1), 3)[0].tolist() == [4.0]
        assert op(np.ones(1), 3)[1] == 3


def test_a_schema_may_say_that_the_argument_is_returned(ns):
    def bump(x):
        x += 1
        return x

    schema = "(Tensor(a!) x) -> Tensor(a!)"
    with kf.custom_op(f"{ns}::bump_", bump, mutates_args=["x"], schema=schema) as op:
        x = np.ones(2)
        assert op(x) is x
        assert x.tolist() == [2.0, 2.0]


def test_a_returned_argument_that_is_not_written_to_is_for_opcheck(ns):
    def same(x: np.ndarray) -> np.ndarray:
        return x

    with kf.custom_op(f"{ns}::same", same, mutates_args=()) as op:
        found = kf.opcheck(op.operator, (np.ones(2),), tests="schema", raise_exception=False)
        assert "shares memory with argument 'x'" in found["schema"]


# Without data.


def test_a_function_of_operators_tells_shapes(ns):
    def f(x: kf.Tensor) -> kf.Tensor:
        return kf.exp(x).sum(0)

    with kf.custom_op(f"{ns}::f", f, mutates_args=()) as op:
        assert kf.infer_meta(op.name, kf.ones((2, 3))).shape == (3,)
        kf.opcheck(op.operator, (kf.ones((2, 3)),))


def test_a_function_that_needs_data_says_what_to_register(scale):
    with pytest.raises(kf.NotSupported, match="has no fake kernel") as raised:
        kf.infer_meta(scale.name, np.ones(2))
    assert "its function raised DeviceError" in str(raised.value)
    assert "@op.register_fake" in str(raised.value)
    assert isinstance(raised.value.__cause__, kf.DeviceError)
    report = kf.opcheck(scale.operator, (np.ones(2),))
    assert report["meta"].startswith("skipped: the Meta kernel doesn't know")


def test_a_function_that_makes_data_says_what_to_register(ns):
    def f(x: kf.Tensor) -> kf.Tensor:
        return kf.ones(x.shape)

    with (
        kf.custom_op(f"{ns}::f", f, mutates_args=()) as op,
        pytest.raises(kf.NotSupported, match="its function returned a tensor"),
    ):
        kf.infer_meta(op.name, kf.ones(2))


def test_a_fake_kernel_takes_the_functions_place_and_gives_it_back(scale):
    @scale.register_fake
    def fake(x, k):
        return kf.empty_like(x)

    assert kf.infer_meta(scale.name, np.ones((2, 3))).shape == (2, 3)
    with pytest.raises(kf.RegistrationError):
        scale.register_fake(lambda x, k: kf.empty_like(x))
    handle = scale.register_fake(lambda x, k: kf.empty((7,), device="meta"), override="replace")
    assert kf.infer_meta(scale.name, np.ones((2, 3))).shape == (7,)
    handle.remove()
    with pytest.raises(kf.NotSupported, match="has no fake kernel"):
        kf.infer_meta(scale.name, np.ones(2))


def test_a_fake_kernel_that_does_not_fit_leaves_the_function(scale):
    with pytest.raises(kf.RegistrationError):
        scale.register_fake(lambda: None)
    with pytest.raises(kf.NotSupported, match="its function raised"):
        kf.infer_meta(scale.name, np.ones(2))
    scale.register_fake(lambda x, k: kf.empty_like(x))
    assert kf.infer_meta(scale.name, np.ones(2)).shape == (2,)


# Registrations through it.


def test_a_kernel_for_one_backend_comes_first(scale, npu):
    @scale.register_kernel("cpu")
    def on_cpu(x, k):
        return np.asarray(x) * k + 100.0

    handle = scale.register_kernel(str(npu), lambda x, k: x)
    assert scale(np.ones(1)).tolist() == [102.0]
    assert scale.operator.table()["NPU"].rule == "Direct"
    assert handle.remove()
    assert scale.operator.table()["NPU"].rule == "CompositeExplicitAutograd"


def test_a_layer_is_registered_by_its_key(scale):
    seen = []

    @scale.register_kernel("Profiler", with_keyset=True)
    def layer(keyset, x, k):
        seen.append(k)
        return scale.operator.redispatch(keyset.remove("Profiler"), x, k)

    with kf.include_keys("Profiler"):
        assert scale(np.ones(1), 3.0).tolist() == [3.0]
    assert seen == [3.0]


def test_a_second_kernel_at_a_key_is_an_error(scale):
    scale.register_kernel("cpu", lambda x, k: x)
    with pytest.raises(kf.RegistrationError):
        scale.register_kernel(kf.Device("cpu"), lambda x, k: x)


def test_kernels_of_writing_operators_are_watched_too(ns):
    def f(x: np.ndarray) -> np.ndarray: ...

    with kf.custom_op(f"{ns}::f", f, mutates_args=("x",)) as op:
        op.register_kernel("cpu", lambda x: x)
        with pytest.raises(kf.KernelReturnError, match="returned one of its arguments"):
            op(np.ones(2))


def test_a_derivative_is_registered(scale):
    def setup(ctx, inputs, output):
        ctx.k = inputs[1]

    @scale.register_autograd(setup_context=setup)
    def backward(ctx, grad):
        return grad * ctx.k, None

    assert backward.__name__ == "backward"
    found = kf.grad(lambda x: scale(x, 5.0).sum())(kf.ones(2))
    assert found.tolist() == [5.0, 5.0]
    scale.register_fake(lambda x, k: kf.empty_like(x))
    kf.opcheck(scale.operator, (kf.ones((2, 3)), 3.0))


def test_a_batching_rule_is_registered(scale):
    shapes = []

    @scale.register_vmap
    def rule(info, in_dims, x, k):
        shapes.append(x.shape)
        return scale(x, k), in_dims[0]

    assert kf.vmap(scale)(np.ones((4, 2))).shape == (4, 2)
    assert shapes == [(4, 2)]


def test_an_autocast_category_is_registered(scale):
    handle = scale.register_autocast("lower")
    with kf.autocast("bfloat16"):
        # The function turns it into a NumPy array, which has no bfloat16: it was cast.
        with pytest.raises(kf.DTypeError):
            scale(kf.ones(2, dtype="float32"))
        handle.remove()
        assert str(scale(kf.ones(2, dtype="float32")).dtype) == "float32"


def test_a_kernel_is_switched_off_inside_a_block(scale):
    scale.register_kernel("cpu", lambda x, k: np.asarray(x) * 0.0)
    x = np.ones(1)

    def value():
        return scale(x).item()

    assert value() == 0.0
    with scale.set_kernel_enabled("cpu", False):
        assert value() == 2.0
        with scale.set_kernel_enabled("CPU", True):
            assert value() == 0.0
        assert value() == 2.0
        with scale.set_kernel_enabled("cpu", False):
            assert value() == 2.0
        assert value() == 2.0
    assert value() == 0.0
    with pytest.raises(ZeroDivisionError), scale.set_kernel_enabled("cpu", False):
        raise ZeroDivisionError
    assert value() == 0.0


def test_only_a_registered_kernel_can_be_switched(scale):
    handle = scale.register_kernel("cuda", lambda x, k: x)
    with (
        pytest.raises(kf.MissingKernel, match="no kernel at CPU to switch; it has CUDA"),
        scale.set_kernel_enabled("cpu", False),
    ):
        pass
    handle.remove()
    with (
        pytest.raises(kf.MissingKernel, match="it has none"),
        scale.set_kernel_enabled("cuda", False),
    ):
        pass


# Going, and coming again.


def test_close_takes_everything_back(ns):
    before = kf._core._default_dispatcher().kernel_count()

    def f(x: kf.Tensor) -> kf.Tensor:
        return x + 1

    op = kf.custom_op(f"{ns}::f", f, mutates_args=())
    op.register_kernel("cpu", lambda x: x)
    op.register_fake(kf.empty_like)
    op.register_autograd(lambda ctx, grad: grad)
    op.register_vmap(lambda info, in_dims, x: (x, in_dims[0]))
    op.register_autocast("full")
    assert not op.closed
    op.close()
    op.close()
    assert op.closed
    assert repr(op).endswith("(closed)>")
    assert kf._core._default_dispatcher().kernel_count() == before
    with pytest.raises(kf.OperatorRemoved):
        op(kf.ones(1))
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::f")


def test_a_with_block_ends_the_operator_after_an_error_too(ns):
    def f(x: kf.Tensor) -> kf.Tensor: ...

    with pytest.raises(ZeroDivisionError), kf.custom_op(f"{ns}::f", f, mutates_args=()):
        raise ZeroDivisionError
    assert f"{ns}::f" not in kf._core._default_dispatcher().operator_names()


def test_losing_the_object_does_not_unregister(ns):
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    kf.custom_op(f"{ns}::f", f, mutates_args=())
    assert getattr(kf.ops, ns).f(np.ones(1)).tolist() == [2.0]


def load(source, name="loaded_again"):
    scope = {"__name__": name, "np": np, "kf": kf}
    exec(source, scope)
    return scope["f"]


def test_loading_a_module_again_replaces_its_operators(ns):
    source = "def f(x: np.ndarray) -> np.ndarray:\n    return x + {}\n"
    first = kf.custom_op(f"{ns}::f", load(source.format(1)), mutates_args=())
    first.register_autograd(lambda ctx, grad: grad)
    held = first.operator
    second = kf.custom_op(f"{ns}::f", load(source.format(2)), mutates_args=())
    # An object of the operator that was held before has the new function.
    assert held(np.ones(1)).tolist() == [3.0]
    assert second.operator is held
    assert first.closed
    # The rules are the source's to register again.
    second.register_autograd(lambda ctx, grad: grad * 2)
    assert kf.grad(lambda x: second(x).sum())(kf.ones(1)).tolist() == [2.0]
    second.close()
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::f")


def test_loading_a_module_again_may_change_the_signature(ns):
    first = kf.custom_op(
        f"{ns}::f", load("def f(x: np.ndarray) -> np.ndarray: return x"), mutates_args=()
    )
    source = "def f(x: np.ndarray, k: int) -> np.ndarray: return x * k"
    with kf.custom_op(f"{ns}::f", load(source), mutates_args=()) as second:
        assert first.closed
        assert second(np.ones(1), 3).tolist() == [3.0]
        with pytest.raises(kf.OperatorRemoved):
            first(np.ones(1))


@pytest.mark.parametrize("signature", ["x: np.ndarray", "x: np.ndarray, k: int"])
def test_another_modules_function_can_not_take_the_name(ns, signature):
    source = "def f({}) -> np.ndarray: return x"
    with kf.custom_op(f"{ns}::f", load(source.format("x: np.ndarray")), mutates_args=()) as op:
        with pytest.raises(kf.RegistrationError):
            kf.custom_op(f"{ns}::f", load(source.format(signature), "other"), mutates_args=())
        x = np.ones(1)
        assert op(x) is x


def test_copies_are_the_operator_itself(scale):
    assert copy.copy(scale) is scale
    assert copy.deepcopy([scale])[0] is scale


def test_a_modules_operator_is_pickled_by_name(tmp_path, monkeypatch, ns):
    (tmp_path / "pickled_op.py").write_text(
        "import keyfold as kf\n"
        f"@kf.custom_op('{ns}::same', mutates_args=())\n"
        "def same(x: kf.Tensor) -> kf.Tensor:\n    return x + 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import pickled_op

    try:
        assert pickle.loads(pickle.dumps(pickled_op.same)) is pickled_op.same
    finally:
        pickled_op.same.close()
        del sys.modules["pickled_op"]


def test_a_custom_op_is_made_by_the_function_alone():
    with pytest.raises(TypeError, match=r"is made by keyfold\.custom_op"):
        kf.CustomOp()


def test_calls_go_on_while_kernels_are_switched(scale):
    scale.register_kernel("cpu", lambda x, k: np.asarray(x) * 0.0)
    stop = threading.Event()
    wrong = []

    def call():
        x = np.ones(1)
        while not stop.is_set():
            if scale(x).item() not in (0.0, 2.0):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with scale.set_kernel_enabled("cpu", False):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_operators_come_and_go(ns):
    def f(x: np.ndarray) -> np.ndarray:
        return x + 1

    dispatcher = kf._core._default_dispatcher()
    before = dispatcher.kernel_count(), len(dispatcher.operator_names())
    for _ in range(200):
        with kf.custom_op(f"{ns}::f", f, mutates_args=()) as op:
            op.register_fake(kf.empty_like)
            op(np.ones(1))
    assert (dispatcher.kernel_count(), len(dispatcher.operator_names())) == before


def test_torch_tensors_go_through_as_they_are(ns):
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    seen = []

    def scale_(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        seen.append(x)
        return x.mul_(k)

    # The annotations are texts that name this test's own variable.
    with kf.custom_op(f"{ns}::scale_", scale_, mutates_args=("x",)) as op:
        x = torch.ones(2)
        with pytest.raises(kf.KernelReturnError, match="returned one of its arguments"):
            op(x)
        assert seen[0] is x
        assert x.tolist() == [2.0, 2.0]
