"""Shapes and dtypes without data: register_fake, infer_meta, and what goes wrong."""

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def rows(lib, ns):
    """`rows(Tensor x, int n=2) -> Tensor`, with a CPU kernel alone."""
    lib.define("rows(Tensor x, int n=2) -> Tensor")
    lib.impl("rows", lambda x, n: kf.concat([kf.asarray(x)] * n), "CPU")
    return kf.get_op(f"{ns}::rows")


def meta(*shape, dtype="float32"):
    return kf.empty(shape, dtype=dtype, device="meta")


def test_a_missing_rule_says_how_to_add_one(rows):
    with pytest.raises(kf.MissingKernel) as raised:
        rows(meta(2, 3))
    assert f'@keyfold.register_fake("{rows.name}")' in str(raised.value)
    with pytest.raises(kf.MissingKernel, match="register_fake"):
        kf.infer_meta(rows, np.ones((2, 3)))


def test_a_rule_gives_shapes_without_data(rows):
    @kf.register_fake(rows)
    def fake(x, n):
        return kf.empty((x.shape[0] * n, *x.shape[1:]), dtype=x.dtype, device="meta")

    assert fake.__name__ == "fake", "the decorator gives the function back"
    result = rows(meta(1 << 30, 1 << 20))
    assert result.shape == (1 << 31, 1 << 20)
    assert (str(result.device), result.dtype) == ("meta", "float32")
    result = kf.infer_meta(rows, np.ones((2, 3)), n=5)
    assert isinstance(result, kf.Tensor)
    assert (result.shape, result.dtype, result.device.type) == ((10, 3), "float64", "meta")
    assert "fake" in rows.table()["Meta"].origin


def test_it_is_a_function_too_and_its_handle_takes_it_back(rows):
    handle = kf.register_fake(rows.name, lambda x, n: x)
    assert rows(meta(2)).shape == (2,)
    with pytest.raises(kf.RegistrationError, match="already has a kernel at Meta"):
        kf.register_fake(rows, lambda x, n: x.reshape(1, 2))
    kf.register_fake(rows, lambda x, n: x.reshape(1, 2), override="shadow").remove()
    assert rows(meta(2)).shape == (2,)
    assert handle.remove()
    with pytest.raises(kf.MissingKernel):
        rows(meta(2))


def test_operators_inside_a_rule_work_on_shapes(rows):
    kf.register_fake(rows, lambda x, n: kf.concat([x] * n))
    assert kf.infer_meta(rows, np.ones((2, 3), dtype=np.float32)).shape == (4, 3)


def test_a_rule_of_an_isolated_dispatcher(d):
    d.define("f(Tensor x) -> Tensor")
    kf.register_fake("f", lambda x: x.T, dispatcher=d)
    assert d.call("f", meta(2, 3)).shape == (3, 2)
    assert kf.infer_meta(d.get_op("f"), np.ones((2, 3))).shape == (3, 2)


def test_several_results_and_lists(lib, ns):
    lib.define("split(Tensor x) -> (Tensor, Tensor[], int)")

    @kf.register_fake(f"{ns}::split")
    def fake(x):
        return x[0], [x[1], x[1]], 7

    first, rest, number = kf.infer_meta(f"{ns}::split", kf.ones((2, 3)))
    assert first.shape == (3,)
    assert [x.shape for x in rest] == [(3,), (3,)]
    assert number == 7


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: kf.ones(2), "a tensor float64[2] on cpu"),
        (lambda x: np.ones((2, 1), dtype=np.float32), "a numpy.ndarray float32[2, 1] with data"),
        (lambda x: np.float64(1.0), "a numpy.float64 float64[] with data"),
    ],
)
def test_data_is_refused(lib, ns, result, said):
    lib.define("f(Tensor x) -> Tensor")
    kf.register_fake(f"{ns}::f", result)
    for call in (
        lambda: kf.get_op(f"{ns}::f")(meta(2)),
        lambda: kf.infer_meta(f"{ns}::f", meta(2)),
    ):
        with pytest.raises(kf.KernelReturnError) as raised:
            call()
        assert str(raised.value).startswith(f"{ns}::f: the fake kernel ")
        assert f"returned {said}" in str(raised.value)


def test_data_among_several_results_is_refused_with_its_place(lib, ns):
    lib.define("f(Tensor x) -> (Tensor, Tensor)")
    kf.register_fake(f"{ns}::f", lambda x: (x, kf.ones(2)))
    with pytest.raises(kf.KernelReturnError, match="as result 1; results must be tensors on meta"):
        kf.infer_meta(f"{ns}::f", meta(2))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: (x, x), "tuple"),
        (lambda x: None, "None"),
        (lambda x: "text", "'text'"),
        (lambda x: [x], "list"),
    ],
)
def test_the_wrong_kind_or_count_is_refused(lib, ns, result, said):
    lib.define("f(Tensor x) -> Tensor")
    kf.register_fake(f"{ns}::f", result)
    with pytest.raises(kf.KernelReturnError) as raised:
        kf.infer_meta(f"{ns}::f", meta(2))
    assert said in str(raised.value)
    assert f"{ns}::f" in str(raised.value)


def test_a_signature_that_contradicts_the_schema_is_refused(rows):
    with pytest.raises(kf.RegistrationError, match="contradicts the schema"):
        kf.register_fake(rows, lambda x: x)


def test_an_unknown_operator_is_refused():
    with pytest.raises(kf.UnknownOperator, match="did you mean aten::matmul"):
        kf.register_fake("aten::matmull", lambda a, b: a)


def test_inference_keeps_strides_and_dtypes():
    x = np.ones((4, 6), dtype=np.float32).T[::-1]
    seen = kf.infer_meta("aten::alias", x)
    assert (seen.shape, seen.strides, seen.dtype) == ((6, 4), (-1, 6), "float32")


def test_inference_of_built_in_operators():
    result = kf.infer_meta("aten::matmul", np.ones((2, 3)), kf.ones((3, 4), dtype="float32"))
    assert (result.shape, result.dtype) == ((2, 4), "float64")
    assert kf.infer_meta(kf.ops.aten.add, kf.ones(2), 3).shape == (2,)
    zeros = kf.infer_meta("aten::zeros", [1 << 40, 2], device="cpu")
    assert (zeros.shape, zeros.device.type) == ((1 << 40, 2), "meta")
    with pytest.raises(kf.ShapeError, match="aten::matmul"):
        kf.infer_meta("aten::matmul", kf.ones((2, 3)), kf.ones((2, 3)))
