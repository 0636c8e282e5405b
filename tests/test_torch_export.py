"""keyfold operators in PyTorch: numbers, shapes without data, gradients, errors, removal."""

import contextlib
import gc
import threading
import warnings

import numpy as np
import pytest

import keyfold as kf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at import
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: no exports are tested")

import keyfold.torch as kt

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

DOUBLE = torch.float64


@pytest.fixture
def exports():
    """`exports(op, ...)`: as `export`, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(kt.export(*args, **kwargs))


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def randn(*shape, grad=True):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, dtype=DOUBLE, generator=generator).requires_grad_(grad)


def passes(op, *args, **kwargs):
    """Checks an exported operator by torch's own tools."""
    found = torch.library.opcheck(op.op, args, kwargs)
    assert set(found.values()) == {"SUCCESS"}, found


@pytest.fixture
def scale(lib, ns, exports):
    """An operator of one's own with everything: kernel, shapes, derivative."""
    lib.define("scale(Tensor x, float k=2.0) -> Tensor")
    lib.impl("scale", lambda x, k: x * k, "CPU")
    kf.register_fake(f"{ns}::scale", lambda x, k: x)
    kf.register_autograd(
        f"{ns}::scale",
        lambda ctx, grad: (grad * ctx.k, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
    )
    return exports(f"{ns}::scale")


# Calls.


def test_an_exported_operator_is_torchs(scale, ns):
    x = torch.arange(3.0)
    assert scale(x).tolist() == [0, 2, 4]
    assert getattr(torch.ops, ns).scale(x, k=3.0).tolist() == [0, 3, 6]
    assert isinstance(scale.op, torch._ops.OpOverload)
    assert scale.operator is kf.get_op(f"{ns}::scale")
    assert str(scale.op._schema) == f"{ns}::scale(Tensor x, float k=2.) -> Tensor"
    assert ns in repr(scale)


def test_a_builtin_operator_is_in_torchs_namespace_keyfold(exports):
    add = exports(kf.ops.aten.add)
    assert torch.ops.keyfold.add(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    assert add.op is torch.ops.keyfold.add.default
    scalar = exports("aten::add.Scalar")
    assert scalar.op is torch.ops.keyfold.add.Scalar
    assert torch.ops.keyfold.add(torch.ones(2), 2).tolist() == [3, 3]


def test_another_name_and_the_same_one_twice(exports, ns):
    first = exports("aten::exp", name=f"{ns}::e")
    assert kt.export("aten::exp", name=f"{ns}::e") is first
    assert exports("aten::exp", name=f"{ns}::e.other").op.name() == f"{ns}::e.other"
    with pytest.raises(kf.RegistrationError, match=f"torch has an operator {ns}::e already"):
        kt.export("aten::log", name=f"{ns}::e")
    with pytest.raises(kf.SchemaError, match="namespace::name"):
        kt.export("aten::log", name="nothing")
    with pytest.raises(kf.UnknownOperator):
        kt.export("aten::no_such_operator")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE, torch.int64, torch.bool]
)
def test_every_dtype_of_keyfold_and_torch_comes_back_as_it_went(exports, dtype):
    add = exports("aten::add")
    made = add(torch.ones(3).to(dtype), torch.ones(3).to(dtype))
    assert made.dtype == dtype
    assert made.tolist() == torch.add(torch.ones(3).to(dtype), torch.ones(3).to(dtype)).tolist()


def test_kernels_get_complex_and_narrow_tensors_too(lib, ns, exports):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x + x, "CPU")
    twice = exports(f"{ns}::twice")
    for dtype in (torch.complex64, torch.complex128, torch.int8, torch.uint8, torch.int16):
        x = torch.ones(2).to(dtype)
        assert twice(x).equal(x + x)


def test_a_dtype_that_keyfold_has_not_is_named(exports):
    add = exports("aten::add")
    with pytest.raises(kf.DTypeError, match="float8_e4m3fn"):
        add(torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).to(torch.float8_e4m3fn))


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(()),
        torch.ones(0, 3),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(8.0)[1::2],
        torch.arange(3.0).expand(2, 3),
        torch._neg_view(torch.arange(3.0)),
        torch.nn.Parameter(torch.arange(3.0)),
    ],
    ids=["0-dim", "empty", "transposed", "strided", "expanded", "negated", "parameter"],
)
def test_tensors_of_any_form_mean_what_they_mean_in_torch(exports, x):
    assert exports("aten::exp")(x).allclose(torch.exp(x.resolve_neg()))


def test_conjugated_tensors_are_resolved(lib, ns, exports):
    lib.define("double(Tensor x) -> Tensor")
    lib.impl("double", lambda x: np.asarray(x) * 2 if not hasattr(x, "mul") else x * 2, "CPU")
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert exports(f"{ns}::double")(x.conj()).tolist() == [2 - 4j, 6 + 2j]


def test_calls_share_memory_with_the_tensors_and_copy_nothing(lib, ns, exports):
    seen = []
    lib.define("look(Tensor x) -> Tensor")
    lib.impl("look", lambda x: seen.append(kf.asarray(x).data_ptr()) or kf.ones(1), "CPU")
    x = torch.ones(5)
    exports(f"{ns}::look")(x)
    assert seen == [x.data_ptr()]


def test_a_result_that_is_an_argument_is_copied(lib, ns, exports):
    lib.define("same(Tensor x) -> Tensor")
    lib.impl("same", lambda x: x, "CPU")
    x = torch.ones(3)
    y = exports(f"{ns}::same")(x)
    y += 1
    assert x.tolist() == [1, 1, 1]


def test_views_are_copies_in_torch(exports):
    permute = exports("aten::permute")
    x = randn(2, 3)
    assert permute(x, [1, 0]).equal(x.T)
    assert permute(x, [1, 0]).is_contiguous()
    passes(permute, x, [1, 0])
    passes(exports("aten::expand"), randn(1, 3), [4, 3])


def test_inference_mode_and_no_grad(exports):
    mul = exports("aten::mul")
    with torch.inference_mode():
        assert mul(torch.ones(2), torch.ones(2)).is_inference()
    with torch.no_grad():
        assert not mul(randn(2), randn(2)).requires_grad


# Schemas.


def test_lists_optionals_numbers_and_several_results(lib, ns, exports):
    lib.define(
        "all(Tensor[] xs, Tensor? y, Scalar k, int[2] n=1, *, bool b=True, str s='a,b') "
        "-> (Tensor first, Tensor[] rest)"
    )

    def kernel(xs, y, k, n, *, b, s):
        assert (n, s) == ([1, 1], "a,b")
        return xs[0] * k, [x + (1 if y is None else y) for x in xs[1:]] if b else []

    lib.impl("all", kernel, "CPU")
    kf.register_fake(f"{ns}::all", lambda xs, y, k, n, b, s: (xs[0], xs[1:] if b else []))
    op = exports(f"{ns}::all")
    a, b = torch.ones(2), torch.zeros(2)
    first, rest = op([a, b], None, 3)
    assert (first.tolist(), rest[0].tolist()) == ([3, 3], [1, 1])
    assert op([a, b], a, 0.5, b=False)[1] == []
    passes(op, [a, b], a, 2)


def test_numbers_as_results(lib, ns, exports):
    lib.define("count(Tensor x) -> int")
    lib.impl("count", lambda x: int(np.prod(x.shape)), "CPU")
    assert exports(f"{ns}::count")(torch.ones(2, 3)) == 6


def test_an_absent_tensor_as_result(lib, ns, exports):
    lib.define("maybe(Tensor x, bool b) -> (Tensor, Tensor?)")
    lib.impl("maybe", lambda x, b: (x * 1, x * 2 if b else None), "CPU")
    kf.register_fake(f"{ns}::maybe", lambda x, b: (x, x if b else None))
    maybe = exports(f"{ns}::maybe")
    assert maybe(torch.ones(1), False)[1] is None
    assert maybe(torch.ones(1), True)[1].tolist() == [2]


def test_defaults_that_torch_cannot_read_are_kept(lib, ns, exports):
    lib.define(
        "odd(Tensor x, complex c=1.0, float f=inf, ScalarType d=float32, str[] s=['a'], "
        "MemoryFormat m=channels_last) -> Tensor"
    )
    seen = []
    lib.impl("odd", lambda *args: seen.append(args[1:]) or args[0] * 1, "CPU")
    odd = exports(f"{ns}::odd")
    odd(torch.ones(1))
    assert seen.pop() == (1.0, np.inf, kf.float32, ["a"], "channels_last")
    odd(torch.ones(1), 2j, 1.5, torch.float64, ["b"], torch.contiguous_format)
    c, f, d, s, m = seen.pop()
    assert (c, f, str(kf.DType(d)), s, m) == (2j, 1.5, "float64", ["b"], "contiguous_format")


def test_a_default_that_nothing_can_stand_for_is_refused(lib, ns):
    lib.define("odd(Tensor x, complex? c=1.0) -> Tensor")
    with pytest.raises(kf.SchemaError, match=r"torch can't read the default of 'complex\? c=1"):
        kt.export(f"{ns}::odd")


def test_an_argument_name_that_torch_cannot_have_is_refused(lib, ns):
    lib.define("odd(Tensor x, int def) -> Tensor")
    with pytest.raises(kf.SchemaError, match="argument of the name 'def'"):
        kt.export(f"{ns}::odd")


def test_factories_go_where_they_are_told(exports):
    zeros = exports("aten::zeros")
    made = zeros([2, 3], dtype=torch.int64, device=torch.device("cpu"))
    assert (made.dtype, made.shape) == (torch.int64, (2, 3))
    passes(zeros, [2, 3])


# Writing to arguments.


def test_in_place_operators_write_and_say_so(exports):
    fill = exports("aten::fill_.Scalar")
    x = torch.zeros(3)
    version = x._version
    assert fill(x, 2.0) is x
    assert x.tolist() == [2, 2, 2]
    assert x._version > version
    passes(fill, torch.zeros(3), 1.0)
    compiled = torch.compile(
        lambda x: fill(x.clone(), 2.0) + 1, fullgraph=True, backend="aot_eager"
    )
    assert compiled(torch.zeros(2)).tolist() == [3, 3]


def test_writing_to_a_negated_tensor_reaches_its_memory(exports):
    x = torch.zeros(3)
    exports("aten::fill_.Scalar")(torch._neg_view(x), 2.0)
    assert x.tolist() == [-2, -2, -2]


def test_out_operators(lib, ns, exports):
    lib.define("double(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")

    def kernel(x, *, out):
        out[...] = x * 2
        return out

    lib.impl("double", kernel, "CPU")
    kf.register_fake(f"{ns}::double", lambda x, out: out)
    double = exports(f"{ns}::double")
    out = torch.zeros(2)
    assert double(torch.ones(2), out=out) is out
    assert out.tolist() == [2, 2]
    compiled = torch.compile(
        lambda x: double(x, out=torch.zeros(2)), fullgraph=True, backend="aot_eager"
    )
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_several_written_arguments_and_no_result(lib, ns, exports):
    lib.define("swap(Tensor(a!) x, Tensor(b!)[] ys) -> ()")

    def kernel(x, ys):
        for y in ys:
            y[...] = x
        x[...] = 7

    lib.impl("swap", kernel, "CPU")
    kf.register_fake(f"{ns}::swap", lambda x, ys: None)
    swap = exports(f"{ns}::swap")
    x, y = torch.ones(2), torch.zeros(2)
    assert swap(x, [y]) is None
    assert (x.tolist(), y.tolist()) == ([7, 7], [1, 1])
    passes(swap, torch.ones(2), [torch.zeros(2)])


def test_results_that_are_written_arguments_elsewhere_are_refused(lib, ns):
    lib.define("odd(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor)")
    with pytest.raises(kf.SchemaError, match="torch can't express"):
        kt.export(f"{ns}::odd")


def test_writing_refuses_to_be_differentiated(exports):
    fill = exports("aten::fill_.Scalar")
    with pytest.raises(kf.GradientError, match="'self' requires grad"):
        fill(randn(2), 1.0)
    x = randn(2)
    with torch.no_grad():
        fill(x, 1.0)
    assert x.tolist() == [1, 1]


# Shapes without data.


def test_fake_tensors_have_the_promised_strides(lib, ns, exports):
    lib.define("turned(Tensor x) -> Tensor")
    lib.impl("turned", lambda x: x.T * 1, "CPU")
    kf.register_fake(f"{ns}::turned", lambda x: x.T)
    turned = exports(f"{ns}::turned")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool):
            y = turned(torch.empty_strided((2, 3), (7, 2), dtype=dtype))
            assert (y.shape, y.stride(), y.dtype) == ((3, 2), (2, 7), dtype)
            huge = torch.empty(1 << 20, 1 << 20, dtype=dtype, device="cuda")
            assert turned(huge).device.type == "cuda"


def test_meta_tensors(scale):
    y = scale(torch.empty(2, 3, device="meta"))
    assert (y.shape, y.device.type) == ((2, 3), "meta")


def test_meta_tensors_beside_others_are_refused(exports):
    add = exports("aten::add")
    with pytest.raises(kf.DeviceError, match="on meta and have no data, others are on cpu"):
        add(torch.ones(2), torch.empty(2, device="meta"))
    assert add(torch.ones(()), torch.empty(2, device="meta")).device.type == "meta"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_has_it_in_one_graph(scale, backend):
    def f(x):
        return (scale(x.sin(), 3.0) * x).sum()

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for n in (3, 4, 5):
        x = randn(n)
        (grad,) = torch.autograd.grad(compiled(x), x)
        (expected,) = torch.autograd.grad(f(x), x)
        assert grad.allclose(expected)


def test_symbolic_sizes_become_numbers_unless_a_fake_keeps_them(exports, ns):
    count = torch._dynamo.testing.CompileCounter
    add = exports("aten::add")
    counter = count()
    compiled = torch.compile(lambda x: add(x, x), fullgraph=True, backend=counter, dynamic=True)
    assert [compiled(torch.ones(n)).shape[0] for n in (3, 4, 5)] == [3, 4, 5]
    assert counter.frame_count == 3
    own = exports("aten::add", name=f"{ns}::add", fake=lambda a, b: torch.empty_like(a + b))
    counter = count()
    compiled = torch.compile(lambda x: own(x, x), fullgraph=True, backend=counter, dynamic=True)
    assert [compiled(torch.ones(n)).shape[0] for n in (3, 4, 5)] == [3, 4, 5]
    assert counter.frame_count == 1


def test_torch_export_has_it_as_a_node(scale):
    class Model(torch.nn.Module):
        def forward(self, x):
            return scale(x, 3.0)

    program = torch.export.export(Model(), (torch.ones(3),))
    assert scale.op in [node.target for node in program.graph.nodes]
    assert program.module()(torch.ones(3)).tolist() == [3, 3, 3]


def test_without_a_meta_kernel_a_trace_says_how_to_register_one(lib, ns, exports):
    lib.define("bare(Tensor x) -> Tensor")
    lib.impl("bare", lambda x: x * 1, "CPU")
    bare = exports(f"{ns}::bare")
    with pytest.raises(kf.MissingKernel, match="register_fake"):
        bare(torch.empty(2, device="meta"))
    with pytest.raises(Exception, match="no kernel registered for Meta"):
        torch.compile(bare.op, fullgraph=True, backend="eager")(torch.ones(2))


# keyfold's layers and errors.


def test_layers_see_the_calls_that_torch_makes(exports, ns):
    calls = []

    def layer(keyset, self, other):
        calls.append(type(self).__name__)
        return kf.redispatch("aten::mul", keyset.remove("Pipeline"), self, other)

    mul = exports("aten::mul", name=f"{ns}::mul")
    handle = kf.impl("aten::mul", "Pipeline", layer, with_keyset=True)
    try:
        with kf.include_keys("Pipeline"):
            mul(torch.ones(2), torch.ones(2))
    finally:
        handle.remove()
    assert calls == ["Tensor"]


def test_the_profiler_sees_the_calls_that_torch_makes(scale, ns):
    with kf.profile() as profile:
        scale(torch.ones(2))
    assert f"{ns}::scale" in str(profile.table())


def test_errors_come_as_they_are_with_their_notes(lib, ns, exports):
    mistake = ValueError("mine")
    mistake.add_note("a note of mine")

    def kernel(x):
        raise mistake

    lib.define("wrong(Tensor x) -> Tensor")
    lib.impl("wrong", kernel, "CPU")
    with pytest.raises(ValueError, match="mine") as caught:
        exports(f"{ns}::wrong")(torch.ones(1))
    assert caught.value is mistake
    assert mistake.__notes__[0] == "a note of mine"
    assert f"{ns}::wrong" in mistake.__notes__[1]
    with pytest.raises(kf.ShapeError, match="don't broadcast"):
        exports("aten::add")(torch.ones(2), torch.ones(3))


def test_errors_in_backward_come_as_they_are(lib, ns, exports):
    def backward(ctx, grad):
        raise LookupError("in backward")

    lib.define("wrong(Tensor x) -> Tensor")
    lib.impl("wrong", lambda x: x * 1, "CPU")
    kf.register_autograd(f"{ns}::wrong", backward)
    y = exports(f"{ns}::wrong")(randn(1))
    with pytest.raises(LookupError, match="in backward"):
        y.backward()


def test_threads(scale):
    failures = []

    def work(k):
        try:
            for _ in range(30):
                x = torch.full((4,), float(k), dtype=DOUBLE, requires_grad=True)
                y = scale(x, float(k))
                y.sum().backward()
                assert y.tolist() == [k * k] * 4
                assert x.grad.tolist() == [k] * 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# Removal.


def test_a_removed_keyfold_operator_is_an_error_in_torch(lib, ns):
    lib.define("gone(Tensor x) -> Tensor")
    lib.impl("gone", lambda x: x * 1, "CPU")
    with kt.export(f"{ns}::gone") as gone:
        y = gone(randn(2)).sum()
        lib.close()
        with pytest.raises(kf.OperatorRemoved, match=f"{ns}::gone was removed"):
            gone(torch.ones(2))
        with pytest.raises(kf.OperatorRemoved):
            y.backward()
        with pytest.raises(kf.OperatorRemoved):
            gone(torch.empty(2, device="meta"))


def test_an_operator_defined_again_can_be_exported_again(ns):
    for k in (2, 3):
        with kf.Library(ns) as lib:
            lib.define("times(Tensor x) -> Tensor")
            lib.impl("times", lambda x, k=k: x * k, "CPU")
        op = kt.export(f"{ns}::times")
        assert op(torch.ones(1)).tolist() == [k]
        lib.close()
    op.close()


def test_closing_takes_it_from_torch(scale, ns):
    assert hasattr(getattr(torch.ops, ns), "scale_backward")
    scale.close()
    scale.close()
    assert scale.closed
    assert "closed" in repr(scale)
    assert not hasattr(getattr(torch.ops, ns), "scale")
    assert not hasattr(getattr(torch.ops, ns), "scale_backward")
    with pytest.raises(kf.OperatorRemoved, match="was taken back from torch"):
        scale(torch.ones(2))
    with kt.export(f"{ns}::scale") as again:
        assert again(torch.ones(1)).tolist() == [2]


def test_what_still_points_to_a_closed_export_is_an_error_and_no_crash(lib, ns):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 1, "CPU")
    for _ in range(20):
        exported = kt.export(f"{ns}::f")
        y = exported(randn(2)).sum()
        exported.close()
        for x in (torch.ones(2), randn(2), torch.empty(2, device="meta")):
            with pytest.raises(RuntimeError, match=f"{ns}::f"):
                exported.op(x)
        with pytest.raises(kf.OperatorRemoved, match="taken back from torch before its backward"):
            y.backward()


def test_an_export_that_fails_leaves_nothing_behind(lib, ns, exports):
    exports("aten::exp", name=f"{ns}::f_backward")
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(kf.RegistrationError, match=f"{ns}::f_backward already"):
        kt.export(f"{ns}::f")
    assert not hasattr(getattr(torch.ops, ns), "f")


def test_closed_exports_are_freed(lib, ns):
    class Kernel:
        def __call__(self, x):
            return x * 1

    import weakref

    kernel = Kernel()
    alive = weakref.ref(kernel)
    lib.define("held(Tensor x) -> Tensor")
    lib.impl("held", kernel, "CPU")
    del kernel
    with kt.export(f"{ns}::held") as held:
        held(randn(2))
    del held
    lib.close()
    gc.collect()
    assert alive() is None
