"""keyfold operators called from PyTorch: numbers, layouts, layers, errors."""

import threading

import numpy as np
import pytest

import keyfold as kf
from tests.torch.exports import DOUBLE, exports, fresh_compiler, kt, passes, randn, scale, torch

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

__all__ = ["exports", "fresh_compiler", "scale"]

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


def test_public_names_are_the_packages():
    assert {getattr(kt, name).__module__ for name in kt.__all__} == {"keyfold.torch"}
