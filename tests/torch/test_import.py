"""PyTorch operators in keyfold: numbers, shapes without data, gradients, errors, removal."""

import threading
import warnings

import numpy as np
import pytest

import keyfold as kf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at import
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: no imports are tested")

import keyfold.torch as kt

X = np.linspace(0.1, 1.0, 6).reshape(2, 3)


@pytest.fixture
def imports(ns):
    """`imports(op, ...)`: as `import_`, under a name that no other test uses; taken back after."""
    made = []

    def do(op, **kwargs):
        if isinstance(op, str) and op.startswith("aten::"):
            kwargs.setdefault("name", op.replace("aten", ns))
        made.append(kt.import_(op, **kwargs))
        return made[-1]

    yield do
    for operator in made:
        kt.remove(operator)


@pytest.fixture
def tlib(ns):
    """A library of torch's, for operators of the test's own in namespace `ns`."""
    library = torch.library.Library(ns, "FRAGMENT")
    yield library
    library._destroy()


@pytest.fixture
def cube(ns):
    """An operator made with `torch.library.custom_op`, with shapes and a derivative."""

    @torch.library.custom_op(f"{ns}::cube", mutates_args=())
    def cube(x: torch.Tensor, k: float = 1.0) -> torch.Tensor:
        return k * x**3

    cube.register_fake(lambda x, k=1.0: torch.empty_like(x))

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    cube.register_autograd(
        lambda ctx, grad: (grad * 3 * ctx.k * ctx.saved_tensors[0] ** 2, None), setup_context=keep
    )
    return cube


def variable(x):
    return kf.asarray(np.array(x)).requires_grad_()


# Naming an operator.


def test_every_way_to_name_an_operator(imports, cube, ns):
    operator = imports(cube)
    assert operator.name == f"{ns}::cube"
    assert operator is kf.get_op(f"{ns}::cube")
    assert operator.schema == f"{ns}::cube(Tensor x, float k=1.0) -> Tensor"
    packet = getattr(torch.ops, ns).cube
    for same in (packet, packet.default, f"{ns}::cube", f"{ns}::cube.default"):
        assert kt.import_(same) is operator


def test_torchs_own_operators_are_in_namespace_torch(ns):
    try:
        assert kt.import_("aten::erf").name == "torch::erf"
        assert kf.ops.torch.erf(X).shape == (2, 3)
    finally:
        kt.remove("torch::erf")


def test_of_several_overloads_one_is_named(imports):
    with pytest.raises(kf.SchemaError, match=r"several overloads: name one of aten::add.Tensor"):
        imports(torch.ops.aten.add)
    assert imports("aten::add.Tensor").overload == "Tensor"


def test_what_is_no_operator_of_torchs_is_refused():
    with pytest.raises(kf.UnknownOperator, match="torch has no operator aten::no_such"):
        kt.import_("aten::no_such")
    with pytest.raises(kf.UnknownOperator, match=r"torch has no operator aten::sin\.no_such"):
        kt.import_("aten::sin.no_such")
    with pytest.raises(kf.UnknownOperator, match="namespace::name"):
        kt.import_("sin")
    with pytest.raises(TypeError, match="not function"):
        kt.import_(lambda x: x)
    with pytest.raises(kf.SchemaError, match="namespace::name"):
        kt.import_("aten::sin", name="sin")


def test_a_type_that_keyfold_has_not_is_named(imports):
    with pytest.raises(kf.SchemaError, match=r"no type 'Storage' \(argument 'source'\)"):
        imports("aten::set_.source_Storage")


def test_a_name_that_is_taken_is_refused(imports, lib, ns):
    imports("aten::sin", name=f"{ns}::f")
    with pytest.raises(kf.RegistrationError, match=f"{ns}::f is imported already"):
        kt.import_("aten::cos", name=f"{ns}::f")
    with pytest.raises(kf.RegistrationError, match="is imported already"):
        kt.import_("aten::sin", name=f"{ns}::f", keys=("CPU",))
    lib.define("g(Tensor self) -> Tensor")
    lib.impl("g", lambda self: self, "CPU")
    with pytest.raises(kf.RegistrationError):
        kt.import_("aten::sin", name=f"{ns}::g")
    assert kf.get_op(f"{ns}::g").kernels.keys() == {"CPU"}
    lib.define("h(Tensor self) -> int")
    with pytest.raises(kf.RegistrationError):
        kt.import_("aten::sin", name=f"{ns}::h")


def test_keys(imports):
    operator = imports("aten::sin", keys=("CPU",))
    assert operator.has_kernel("CPU")
    assert not operator.has_kernel("CUDA")


# Calls.


def test_results_are_in_the_callers_library(imports):
    sin = imports("aten::sin")
    assert type(sin(X)) is np.ndarray
    assert isinstance(sin(kf.asarray(X)), kf.Tensor)
    assert isinstance(sin(torch.tensor(X)), torch.Tensor)
    for result in (sin(X), sin(kf.asarray(X)).numpy(), sin(torch.tensor(X)).numpy()):
        np.testing.assert_allclose(result, np.sin(X))


@pytest.mark.parametrize(
    "x",
    [
        np.ones(()),
        np.ones((0, 3)),
        X.T,
        X[:, ::2],
        X[::-1],
        np.broadcast_to(X[0], (4, 3)),
        X.astype(np.float16),
        X.astype(np.complex64),
        X.astype(np.int16),
        X > 0.5,
    ],
    ids=[
        "0-dim",
        "empty",
        "turned",
        "strided",
        "back",
        "read-only",
        "half",
        "complex",
        "int",
        "bool",
    ],
)
def test_arrays_of_any_form(imports, x):
    square = imports("aten::add.Tensor")
    made = square(x, x)
    assert made.dtype == (x + x).dtype
    np.testing.assert_array_equal(made, x + x)


def test_bfloat16(imports):
    x = kf.asarray(X).to(kf.bfloat16)
    made = imports("aten::add.Tensor")(x, x)
    assert made.dtype == kf.bfloat16


def test_calls_copy_nothing(imports, tlib, ns):
    seen = []
    tlib.define("look(Tensor x) -> Tensor")
    tlib.impl("look", lambda x: seen.append(x.data_ptr()) or x + 1, "CPU")
    look = imports(f"{ns}::look")
    for x in (X, kf.asarray(X), torch.tensor(X)):
        look(x)
        assert seen.pop() == kf.asarray(x).data_ptr()


def test_lazy_bits_of_a_result_are_resolved(imports):
    np.testing.assert_array_equal(imports("aten::_conj")(np.array([1 + 2j])), [1 - 2j])


def test_dtypes_devices_and_enumerators(imports):
    zeros = imports("aten::zeros")
    for dtype in (kf.float16, "float16"):
        made = zeros([2], dtype=dtype, device="cpu", layout="strided")
        assert (made.dtype, made.shape) == (kf.float16, (2,))
    to = imports("aten::clone")
    made = to(np.ones((1, 2, 3, 3)), memory_format="channels_last")
    assert made.strides[1] == 8


def test_several_results_and_lists(imports):
    values, indices = imports("aten::topk")(X, 2)
    np.testing.assert_array_equal(values, X[:, :0:-1])
    assert indices.dtype == np.int64
    halves = imports("aten::chunk")(X, 2)
    assert [half.shape for half in halves] == [(1, 3), (1, 3)]
    joined = imports("aten::cat")([X, X], 1)
    assert joined.shape == (2, 6)


def test_torch_records_nothing_but_for_its_own_tensors(imports, tlib, ns):
    modes = []
    tlib.define("mode(Tensor x) -> Tensor")
    tlib.impl("mode", lambda x: modes.append(torch.is_grad_enabled()) or x + 1, "CPU")
    mode = imports(f"{ns}::mode")
    mode(X)
    mode(torch.tensor(X))
    assert modes == [False, False]
    sin = imports("aten::sin")
    x = torch.tensor(X, requires_grad=True)
    sin(x).sum().backward()
    assert x.grad.allclose(x.cos())


def test_errors_of_torchs_come_as_they_are_with_a_note(imports):
    with pytest.raises(RuntimeError, match="must match the size") as caught:
        imports("aten::add.Tensor")(np.ones(2), np.ones(3))
    assert "raised in" in caught.value.__notes__[0]


# Writing to arguments.


@pytest.mark.parametrize("step", [1, -1])
def test_in_place_operators_write_to_the_callers_memory(imports, step):
    add = imports("aten::add_.Tensor")
    for make in (np.ones, kf.ones, torch.ones):
        whole = make(3)
        x = whole if make is torch.ones else whole[::step]
        y = np.arange(3.0)
        assert add(x, torch.tensor(y).float() if make is torch.ones else y) is x
        assert np.asarray(x).tolist() == [1, 2, 3]
        if make is not torch.ones:
            assert np.asarray(whole)[::step].tolist() == [1, 2, 3]


def test_read_only_arrays_are_not_written(imports):
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(kf.ReadOnlyError, match="read-only"):
        imports("aten::add_.Tensor")(x, np.ones(3))
    assert x.tolist() == [1, 1, 1]


def test_out_operators(imports):
    sin = imports("aten::sin.out")
    out = np.zeros((2, 3))
    assert sin(X, out=out) is out
    np.testing.assert_allclose(out, np.sin(X))


def test_an_array_keeps_its_shape(imports, tlib, ns):
    tlib.define("grow(Tensor(a!) x) -> ()")
    tlib.impl("grow", lambda x: x.unsqueeze_(0) and None, "CPU")
    with pytest.raises(kf.ShapeError, match="arrays outside of torch keep theirs"):
        imports(f"{ns}::grow")(np.ones(1))


# Shapes without data.


def test_shapes_strides_and_dtypes_come_from_torch(imports):
    add = imports("aten::add.Tensor")
    made = kf.infer_meta(add, np.ones((3, 1), np.float32), np.ones((1, 4), np.int64))
    assert (made.shape, made.dtype, made.device.type) == ((3, 4), kf.float32, "meta")
    turned = kf.infer_meta(add, np.ones((3, 4)).T, np.ones((4, 3)).T.T)
    assert turned.strides == torch.empty(3, 4).T.add(torch.empty(4, 3)).stride()
    zeros = imports("aten::zeros")
    assert kf.infer_meta(zeros, [2], device="cpu").shape == (2,)


def test_the_fake_of_a_custom_operator_is_used(imports, cube):
    assert kf.infer_meta(imports(cube), np.ones((2, 3))).shape == (2, 3)


def test_an_operator_without_a_fake_says_so(imports, tlib, ns):
    tlib.define("bare(Tensor x) -> Tensor")
    tlib.impl("bare", lambda x: x + 1, "CPU")
    with pytest.raises(Exception, match=f"{ns}.bare"):
        kf.infer_meta(imports(f"{ns}::bare"), X)


# Gradients.


def test_gradients_of_a_custom_operator(imports, cube):
    operator = imports(cube)
    slope = kf.grad(lambda x: operator(x, 2.0).sum())
    np.testing.assert_allclose(slope(X), 6 * X**2)
    assert kf.gradcheck(lambda x: operator(x, 2.0), (variable(X),))
    assert kf.opcheck(operator, (kf.asarray(X), 2.0))["autograd"] == "passed"


CASES = {
    "aten::sin": lambda op, x: op(x),
    "aten::mul.Tensor": lambda op, x: op(x, x),
    "aten::add.Tensor": lambda op, x: op(x, x, alpha=3),
    "aten::cat": lambda op, x: op([x, x * 2.0], 1),
    "aten::topk": lambda op, x: op(x, 2)[0],
    "aten::chunk": lambda op, x: op(x, 2)[1],
    "aten::linear": lambda op, x: op(x, x, None),
    "aten::layer_norm": lambda op, x: op(x, [3]),
}


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives(imports, name):
    operator = imports(name)
    assert kf.gradcheck(lambda x: CASES[name](operator, x), (variable(X),))
    assert kf.gradgradcheck(lambda x: CASES[name](operator, x) * x.sum(), (variable(X),))


def test_no_derivative_is_an_error(imports, ns):
    @torch.library.custom_op(f"{ns}::bare", mutates_args=())
    def bare(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    operator = imports(bare)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        kf.grad(lambda x: operator(x).sum())(X)


def test_a_random_operator_has_no_derivative(imports):
    dropout = imports("aten::dropout")
    assert dropout(X, 0.5, False).shape == (2, 3)
    with pytest.raises(kf.GradientError, match="draws random numbers in torch"):
        kf.grad(lambda x: dropout(x, 0.5, True).sum())(X)


# keyfold's layers.


def test_the_layers_work(imports):
    sin = imports("aten::sin")
    np.testing.assert_allclose(kf.vmap(sin)(X), np.sin(X))
    graph = kf.trace(lambda x: sin(x) + 1.0, X)
    np.testing.assert_allclose(graph(X + 1), np.sin(X + 1) + 1)
    with kf.profile() as profile:
        sin(X)
    assert sin.name in str(profile.table())
    assert not kf.opcheck(sin, (kf.asarray(X),)).failures


def test_threads(imports, cube):
    operator = imports(cube)
    failures = []

    def work(k):
        try:
            for _ in range(20):
                slope = kf.grad(lambda x: operator(x, float(k)).sum())(X)
                np.testing.assert_allclose(slope, 3 * k * X**2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# There and back.


def test_an_exported_operator_imported_is_itself(lib, ns):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2, "CPU")
    with kt.export(f"{ns}::f") as exported:
        assert kt.import_(exported) is kf.get_op(f"{ns}::f")
        assert kt.import_(exported.op) is kf.get_op(f"{ns}::f")


def test_an_imported_operator_exported_is_itself(imports, cube, ns):
    operator = imports(cube)
    exported = kt.export(operator)
    assert exported.op is cube._opoverload
    exported.close()
    assert exported(torch.ones(1)).tolist() == [1]


def test_there_and_back_and_there_under_other_names(imports, ns):
    with kt.export("aten::mul", name=f"{ns}::there") as there:
        back = imports(there, name=f"{ns}::back")
        np.testing.assert_allclose(back(X, X), X * X)
        slope = kf.grad(lambda x: back(x, x).sum())
        np.testing.assert_allclose(slope(X), 2 * X)
        assert kf.gradgradcheck(lambda x: back(x, x), (variable(X),))
        with kt.export(back, name=f"{ns}::again") as again:
            x = torch.tensor(X, requires_grad=True)
            assert again(x, x).equal(x * x)
            assert torch.autograd.gradcheck(again, (x, x))
            assert torch.autograd.gradgradcheck(again, (x, x))
            assert set(torch.library.opcheck(again.op, (x, x)).values()) == {"SUCCESS"}
    with pytest.raises(kf.OperatorRemoved, match=f"{ns}::back is {ns}::there of torch"):
        back(X, X)


# Removal.


def test_removing(imports, ns):
    sin = imports("aten::sin")
    kf.grad(lambda x: sin(x).sum())(X)
    assert kf.get_op(f"{ns}::sin_backward")
    assert kt.remove(sin)
    assert not kt.remove(sin)
    with pytest.raises(kf.OperatorRemoved):
        sin(X)
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::sin_backward")
    with kt.export("aten::exp", name=f"{ns}::e") as exported:
        assert kt.remove(exported)
        assert not kt.remove(exported)
    assert imports("aten::sin")(X).shape == (2, 3)


def test_an_operator_that_torch_has_taken_back_is_an_error(imports, ns):
    library = torch.library.Library(ns, "FRAGMENT")
    library.define("gone(Tensor x) -> Tensor")
    library.impl("gone", lambda x: x + 1, "CPU")
    gone = imports(f"{ns}::gone")
    library._destroy()
    with pytest.raises(kf.OperatorRemoved, match="taken back there"):
        gone(X)
