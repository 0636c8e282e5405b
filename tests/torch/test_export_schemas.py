"""Exported to PyTorch: schemas as torch reads them, and operators that write to arguments."""

import numpy as np
import pytest

import keyfold as kf
from tests.torch.exports import exports, fresh_compiler, kt, passes, randn, torch

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

__all__ = ["exports", "fresh_compiler"]

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
