"""Calls: binding as Python binds, overloads, what kernels get and what callers get back."""

import inspect

import numpy as np
import pytest

import keyfold as kf

ARGUMENTS = "Tensor a, int b, int c=3, *, str mode, bool flag=False"


def a_function(a, b, c=3, *, mode, flag=False):
    return (a, b, c, mode, flag)


@pytest.fixture
def op(d, word):
    """An operator with the signature of `a_function`."""
    d.define(f"ns::op({ARGUMENTS}) -> Tensor")

    @d.impl("ns::op", "CPU")
    def kernel(a, b, c, *, mode, flag):
        return word(f"{a.text} {b} {c} {mode} {flag}")

    return d.ops.ns.op


CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((1, 2, 3, 4), {}),
    ((1, 2, 3, 4, 5), {"mode": "x"}),
    ((1, 2, 3, 4), {"mode": "x", "flag": True}),
    ((1, 2), {"mode": "x", "zoo": 1}),
    ((1, 2), {"b": 2, "mode": "x"}),
    ((1,), {"mode": "x"}),
    ((), {"b": 2, "mode": "x"}),
    ((), {"mode": "x"}),
    ((1, 2, 3), {"c": 3, "mode": "x"}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_binding_messages_are_pythons(op, args, kwargs):
    with pytest.raises(TypeError) as ours:
        op(*args, **kwargs)
    with pytest.raises(TypeError) as pythons:
        a_function(*args, **kwargs)
    expected = str(pythons.value).replace("a_function", "ns::op")
    assert str(ours.value).startswith(expected)
    assert isinstance(ours.value, kf.BindingError)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((2,), {"mode": "m"}),
        ((2, 4), {"mode": "m"}),
        ((), {"b": 2, "mode": "m"}),
        ((), {"mode": "m", "c": 9, "b": 1}),
        ((2, 4), {"flag": True, "mode": "m"}),
    ],
)
def test_arguments_reach_the_kernel_as_python_binds_them(op, word, args, kwargs):
    bound = inspect.signature(a_function).bind("x", *args, **kwargs)
    bound.apply_defaults()
    expected = " ".join(str(value) for value in bound.arguments.values())
    assert op(word("x"), *args, **kwargs).text == expected
    assert op.default(word("x"), *args, **kwargs).text == expected


def test_a_tensor_may_be_given_by_keyword(op, word):
    assert op(a=word("x"), b=1, mode="m").text == "x 1 3 m False"


def test_a_misspelt_keyword_gets_the_name(op, word):
    with pytest.raises(TypeError, match="Did you mean 'mode'"):
        op(word("x"), 1, moed="m")


def test_many_arguments(d, word):
    names = [f"n{i}" for i in range(40)]
    arguments = ", ".join(f"int {name}={i}" for i, name in enumerate(names))
    d.define(f"f(Tensor x, {arguments}) -> Tensor")
    d.impl("f", "CPU", lambda x, *rest: word(",".join(map(str, rest))))
    expected = [str(i) for i in range(40)]
    expected[7] = "70"
    assert d.call("f", word("x"), n7=70).text == ",".join(expected)


def test_defaults_of_every_type_are_filled_in(d, word):
    seen = {}
    d.define(
        'f(Tensor x, int i=-1, float f=2.5, bool b=True, str s="a b", int[] l=[1, 2], '
        "Tensor? t=None, Device? device=None, ScalarType? dtype=float32, Scalar k=1) -> Tensor"
    )

    @d.impl("f", "CPU")
    def kernel(x, i, f, b, s, l, t, device, dtype, k):  # noqa: E741
        seen.update(i=i, f=f, b=b, s=s, l=l, t=t, device=device, dtype=dtype, k=k)
        return x

    d.call("f", word("x"))
    assert seen == {
        "i": -1,
        "f": 2.5,
        "b": True,
        "s": "a b",
        "l": [1, 2],
        "t": None,
        "device": None,
        "dtype": "float32",
        "k": 1,
    }
    assert type(seen["i"]) is int
    assert type(seen["b"]) is bool


def test_a_default_list_is_the_kernels_own(d, word):
    def kernel(x, sizes):
        sizes.append(len(sizes))
        return word(str(sizes))

    d.define("f(Tensor x, int[] sizes=[7]) -> Tensor")
    d.impl("f", "CPU", kernel)
    assert d.call("f", word("x")).text == "[7, 1]"
    assert d.call("f", word("x")).text == "[7, 1]", "one call's changes aren't the next one's"


WRONG_TYPES = [
    ("Tensor", "abc", "str 'abc'"),
    ("Tensor", None, "None"),
    ("Tensor", 3.5, "float 3.5"),
    ("Tensor", [1, 2], "list [1, 2]"),
    ("Tensor?", 1, "int 1"),
    ("Tensor[]", [None], "None"),
    ("Tensor[]", 1, "int 1"),
    ("int", 2.5, "float 2.5"),
    ("int", "1", "str '1'"),
    ("int", True, "bool True"),
    ("int", None, "None"),
    ("float", "1", "str '1'"),
    ("float", 1j, "complex 1j"),
    ("bool", 1, "int 1"),
    ("bool", None, "None"),
    ("str", 1, "int 1"),
    ("str", b"x", "bytes b'x'"),
    ("Scalar", "1", "str '1'"),
    ("int[]", 1, "int 1"),
    ("int[]", [1, 2.5], "list"),
    ("int[]", "12", "str '12'"),
    ("int[2]", [1, 2, 3], "list"),
    ("Device?", 1, "int 1"),
    ("ScalarType?", 3, "int 3"),
]


@pytest.mark.parametrize(("kind", "given", "shown"), WRONG_TYPES)
def test_a_wrong_type_names_argument_type_and_value(d, word, raises_saying, kind, given, shown):
    d.define(f"ns::f(Tensor x, {kind} arg) -> Tensor")
    d.impl("ns::f", "CPU", lambda x, arg: x)
    parts = ["ns::f() argument 'arg", kind.rstrip("?[]2"), shown]
    with raises_saying(TypeError, *parts) as raised:
        d.ops.ns.f(word("x"), given)
    assert isinstance(raised.value, kf.BindingError)
    with raises_saying(TypeError, *parts):
        d.ops.ns.f(word("x"), arg=given)


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [("ScalarType?", "float99", kf.DTypeError), ("Device?", "gpu", kf.DeviceError)],
)
def test_an_unknown_name_is_refused(d, word, raises_saying, kind, given, error):
    d.define(f"ns::f(Tensor x, {kind} arg) -> Tensor")
    with raises_saying(error, "ns::f() argument 'arg'", given, "known are"):
        d.ops.ns.f(word("x"), given)


FITTING = [
    ("int", 3),
    ("int", np.int32(3)),
    ("float", 3),
    ("float", 2.5),
    ("float", np.float32(2.5)),
    ("bool", True),
    ("Scalar", True),
    ("Scalar", 3),
    ("Scalar", 2.5),
    ("Scalar", 2 + 1j),
    ("str", "x"),
    ("int[]", [1, 2]),
    ("int[]", (1, 2)),
    ("int[]", []),
    ("int[2]", [1, 2]),
    ("Tensor?", None),
    ("int?", None),
    ("Device?", "meta"),
    ("Device?", "cpu"),
    ("ScalarType?", kf.float32),
    ("ScalarType?", None),
    ("Any", "text"),
    ("Any", [1, "2"]),
]


@pytest.mark.parametrize(("kind", "given"), FITTING)
def test_a_python_kernel_gets_the_callers_own_object(d, word, kind, given):
    seen = []
    d.define(f"f(Tensor x, {kind} arg) -> Tensor")
    # Device brings its own key: every backend gets the kernel.
    d.impl("f", "CompositeExplicitAutograd", lambda x, arg: seen.append(arg) or x)
    with_keys = word("x", "Meta") if given == "meta" else word("x")
    d.call("f", with_keys, given)
    assert seen[0] is given


def test_lists_of_tensors_bring_their_keys(d, word):
    d.define("f(Tensor[] xs, Tensor?[] ys) -> Tensor")
    d.impl("f", "CPU", lambda xs, ys: word("cpu"))
    d.impl("f", "Tracer", lambda xs, ys: word("tracer"))
    assert d.call("f", [word("a")], [None, word("b")]).text == "cpu"
    assert d.call("f", [word("a"), word("b", "CPU", "Tracer")], []).text == "tracer"
    assert d.call("f", [], [word("a", "Tracer", "CPU"), None]).text == "tracer"
    assert d.call("f", (), ()).text == "cpu", "the default device"


def test_a_wrong_element_is_named_by_its_place(d, word, raises_saying):
    d.define("ns::f(Tensor[] xs) -> Tensor")
    with raises_saying(TypeError, "ns::f() argument 'xs[1]'", "Tensor", "str 'oops'"):
        d.call("ns::f", [word("a"), "oops"])


def test_overloads_resolve_in_declaration_order(d, word):
    d.define("f.both(Tensor x, Scalar y) -> Tensor")
    d.define("f.int(Tensor x, int y) -> Tensor")
    d.define("f.str(Tensor x, str y) -> Tensor")
    for name in ["both", "int", "str"]:
        d.impl(f"f.{name}", "CPU", lambda x, y, name=name: word(name))
    assert d.ops.f.overloads() == ["both", "int", "str"]
    assert d.ops.f(word("x"), 1).text == "both"
    assert d.ops.f(word("x"), "s").text == "str"
    assert d.ops.f.int(word("x"), 1).text == "int"
    assert d.call("f", word("x"), "s").text == "str"
    assert d.call("f.int", word("x"), 1).text == "int"


def test_overloads_differ_by_arity_and_keyword(d, word):
    d.define("f(Tensor x) -> Tensor")
    d.define("f.two(Tensor x, Tensor y) -> Tensor")
    d.define("f.dim(Tensor x, *, int dim) -> Tensor")
    for name in ["f", "f.two", "f.dim"]:
        d.impl(name, "CPU", lambda x, y=0, name=name, **kw: word(name))
    x = word("x")
    assert [d.ops.f(x).text, d.ops.f(x, x).text, d.ops.f(x, dim=1).text] == ["f", "f.two", "f.dim"]
    assert d.ops.f.default(x).text == "f"


def test_no_overload_fits_says_why_for_each(d, word, raises_saying):
    d.define("ns::f(Tensor x) -> Tensor")
    d.define("ns::f.int(Tensor x, int y) -> Tensor")
    parts = ["ns::f() has no overload", "ns::f(Tensor x) -> Tensor", "takes 1 positional argument"]
    parts += ["ns::f.int(Tensor x, int y) -> Tensor", "argument 'y'", "str 'oops'"]
    with raises_saying(TypeError, *parts):
        d.ops.ns.f(word("x"), "oops")


def test_a_failing_kernel_isnt_taken_for_a_misfit(d, word):
    def fails(x):
        raise TypeError("mine")

    d.define("f.a(Tensor x) -> Tensor")
    d.define("f.b(Tensor x) -> Tensor")
    d.impl("f.a", "CPU", fails)
    d.impl("f.b", "CPU", lambda x: x)
    with pytest.raises(TypeError, match="mine"):
        d.ops.f(word("x"))


def test_an_unknown_overload_offers_near_names(d, raises_saying):
    d.define("ns::f.scalar(Tensor x) -> Tensor")
    with raises_saying(AttributeError, "ns::f", "'scaler'", "'scalar'"):
        d.ops.ns.f.scaler
    with raises_saying(AttributeError, "ns::f has no overload 'other'", "scalar"):
        d.get_op("ns::f.other")


def test_several_overloads_without_a_default_must_be_named(d, raises_saying):
    d.define("ns::f.a(Tensor x) -> Tensor")
    d.define("ns::f.b(Tensor x) -> Tensor")
    with raises_saying(AttributeError, "ns::f.a", "ns::f.b"):
        d.ops.ns.f.schema


def test_what_an_operator_says_of_itself(d):
    d.define("ns::f(Tensor x) -> Tensor")
    op = d.ops.ns.f.default
    assert (op.name, op.overload, op.schema) == ("ns::f", "default", "ns::f(Tensor x) -> Tensor")
    assert d.get_op("ns::f") is op
    assert d.ops.ns.f.name == "ns::f"
    assert d.ops.ns.f.schema == op.schema
    assert "ns::f" in repr(op)


def test_namespaces_list_what_they_have(d):
    d.define("ns::f(Tensor x) -> Tensor")
    d.define("ns::g.over(Tensor x) -> Tensor")
    d.define("plain(Tensor x) -> Tensor")
    assert dir(d.ops.ns) == ["f", "g"]
    assert list(d.ops) == ["ns", "plain"]
    assert callable(d.ops.plain)


RETURNS = [
    ("Tensor", "text", "str"),
    ("Tensor", None, "None"),
    ("Tensor", 3, "int 3"),
    ("Tensor", (1, 2), "tuple"),
    ("int", 2.5, "float 2.5"),
    ("int", None, "None"),
    ("bool", 1, "int 1"),
    ("str", 1, "int 1"),
    ("()", 1, "int 1"),
    ("(int, int)", 1, "int 1"),
    ("(int, int)", (1,), "tuple (1,)"),
    ("(int, int)", (1, 2, 3), "tuple (1, 2, 3)"),
    ("(int, str)", (1, 2), "tuple (1, 2)"),
    ("Tensor[]", 1, "int 1"),
    ("int[]", ["a"], "list ['a']"),
]


@pytest.mark.parametrize(("returns", "given", "shown"), RETURNS)
def test_a_wrong_return_is_refused(d, word, raises_saying, returns, given, shown):
    d.define(f"ns::f(Tensor x) -> {returns}")

    def a_kernel(x):
        return given

    d.impl("ns::f", "CPU", a_kernel)
    with raises_saying(TypeError, "ns::f", "a_kernel", shown, returns.strip("()[]")) as raised:
        d.ops.ns.f(word("x"))
    assert isinstance(raised.value, kf.KernelReturnError)


RIGHT_RETURNS = [
    ("()", None),
    ("int", 3),
    ("float", 2.5),
    ("bool", True),
    ("str", "x"),
    ("int[]", [1, 2]),
    ("(int, str)", (1, "x")),
    ("Tensor?", None),
    ("Scalar", 1),
]


@pytest.mark.parametrize(("returns", "given"), RIGHT_RETURNS)
def test_what_is_promised_comes_back(d, word, returns, given):
    d.define(f"f(Tensor x) -> {returns}")
    d.impl("f", "CPU", lambda x: given)
    assert d.call("f", word("x")) == given


def test_multiple_returns_are_a_tuple(d):
    d.define("f(Tensor x) -> (Tensor, Tensor, int)")
    d.impl("f", "CPU", lambda x: [x, x + 1, 3])
    x = np.zeros(2)
    result = d.call("f", x)
    assert type(result) is tuple
    assert result[0] is x
    assert result[1].tolist() == [1.0, 1.0]
    assert result[2] == 3


def test_a_numpy_scalar_counts_as_0_dim(d):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x.sum())
    result = d.call("f", np.arange(4.0))
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result.dtype == np.float64
    assert result == 6.0


def test_a_numpy_scalar_is_taken_as_an_argument():
    result = kf.ops.aten.add(np.float64(1.5), np.float64(2.0))
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result == 3.5


def test_numpy_in_numpy_out():
    a = np.arange(6.0).reshape(2, 3)
    result = kf.ops.aten.add(a, a)
    assert type(result) is np.ndarray
    assert np.array_equal(result, a + a)
    result = kf.ops.aten.sum(a)
    assert type(result) is np.ndarray
    assert result.shape == ()


def test_keyfold_in_keyfold_out():
    a = kf.ops.aten.ones([2, 3])
    assert type(a) is kf.Tensor
    assert type(kf.ops.aten.add(a, a)) is kf.Tensor


def test_numpy_together_with_keyfold_gives_keyfold(d):
    a, t = np.ones(3), kf.ops.aten.ones([3])
    assert type(kf.ops.aten.add(a, t)) is kf.Tensor
    assert type(kf.ops.aten.add(t, a)) is kf.Tensor
    d.define("f(Tensor x, Tensor y) -> Tensor")
    d.impl("f", "CPU", lambda x, y: np.zeros(2))
    assert type(d.call("f", a, t)) is kf.Tensor
    assert type(d.call("f", a, a)) is np.ndarray


def test_a_python_kernel_that_returns_a_tensor_to_a_numpy_caller(d):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: kf.ops.aten.ones([2]))
    result = d.call("f", np.zeros(1))
    assert type(result) is np.ndarray
    assert result.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["empty", "zeros", "ones"])
def test_factories_follow_their_device(name):
    factory = getattr(kf.ops.aten, name)
    meta = factory([2, 3], device="meta")
    assert kf.DispatchKeySet.from_tensors([meta]) == kf.DispatchKeySet("Meta")
    assert kf.DispatchKeySet.from_tensors([factory([2, 3])]) == kf.DispatchKeySet("CPU")
    assert "Meta" in kf.explain(factory, [2], device="meta").keyset


def test_factories_on_meta_have_no_data():
    meta = kf.ops.aten.full([3], 1.5, device="meta")
    assert kf.explain("aten::exp", meta).key is kf.DispatchKey.Meta
    meta = kf.ops.aten.arange(10**15, device="meta")
    assert kf.DispatchKeySet.from_tensors([meta]) == kf.DispatchKeySet("Meta")


def test_the_module_has_the_factories():
    x = kf.zeros((2, 3), dtype="float32")
    assert (x.shape, str(x.dtype), str(x.device)) == ((2, 3), "float32", "cpu")
    y = kf.empty((4,), dtype=np.float64, device="meta")
    assert (y.shape, y.device.type) == ((4,), "meta")
    assert np.asarray(kf.arange(3)).tolist() == [0, 1, 2]
    assert np.asarray(kf.full((2,), 7)).tolist() == [7, 7]
    assert np.asarray(kf.ones((2,))).tolist() == [1, 1]


def test_a_registered_backend_has_factories(npu, word, lib, raises_saying):
    with raises_saying(NotImplementedError, "aten::empty", "NPU"):
        kf.ops.aten.empty([2], device="npu")
    handle = kf.impl("aten::empty", "NPU", lambda size, *, dtype, device: word(f"{size}", "NPU"))
    try:
        assert kf.ops.aten.empty([2], device="npu").text == "[2]"
    finally:
        handle.remove()


def test_get_kernel_is_callable_with_the_operators_arguments(op, d, word):
    kernel = d.get_kernel("ns::op", "CPU")
    assert kernel(word("x"), 1, mode="m").text == "x 1 3 m False"
    assert (kernel.operator, kernel.key) == ("ns::op", "CPU")
    assert kernel.function is d.get_op("ns::op").kernels["CPU"]
    assert kernel == d.get_kernel("ns::op", "CPU")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        kernel(word("x"), mode="m")


def test_get_kernel_gives_the_computed_entry(d, word, raises_saying):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CompositeImplicitAutograd", lambda x: word("composite"))
    assert d.get_kernel("ns::f", "CUDA")(word("x")).text == "composite"
    assert d.has_kernel("ns::f", "AutogradCPU")
    with raises_saying(NotImplementedError, "ns::f", "Tracer", "CompositeImplicitAutograd"):
        d.get_kernel("ns::f", "Tracer")


def test_calls_through_every_door_agree(lib, ns, word):
    lib.define("f(Tensor x, int n=1) -> Tensor")
    lib.impl("f", lambda x, n: word(f"{x.text}{n}"), "CPU")
    x = word("x")
    packet = getattr(kf.ops, ns).f
    doors = [packet, packet.default, kf.get_op(f"{ns}::f"), kf.get_kernel(f"{ns}::f", "CPU")]
    assert [door(x, 2).text for door in doors] == ["x2"] * 4
    assert [door(x=x).text for door in doors] == ["x1"] * 4


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_returned_list_is_put_in_the_callers_library_as_a_new_list(d, kind):
    kept = kind([kf.ones(2), kf.zeros(2)])
    d.define("pair(Tensor x) -> Tensor[]")
    d.impl("pair", "CPU", lambda x: kept)
    result = d.call("pair", np.ones(2))
    assert [type(item) for item in result] == [np.ndarray, np.ndarray]
    assert [type(item) for item in kept] == [kf.Tensor, kf.Tensor], "the kernel's own is untouched"


@pytest.mark.parametrize("result", [np.array([None]), np.ones(2).astype(">f8")])
def test_a_result_of_a_dtype_that_isnt_taken_names_the_kernel(d, result):
    kf.from_dlpack(np.ones(2))  # NumPy's arrays don't count as another library's after it
    d.define("odd(Tensor x) -> Tensor")
    d.impl("odd", "CPU", lambda x: result)
    with pytest.raises(kf.KernelReturnError, match=r"odd: the kernel .*lambda.*dtype"):
        d.call("odd", np.ones(2))
