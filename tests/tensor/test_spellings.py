"""Names and forms of arguments of NumPy and PyTorch beside the array API's."""

import inspect
import re

import numpy as np
import pytest

import keyfold as kf

A = np.arange(24.0).reshape(2, 3, 4)
REDUCTIONS = ["sum", "mean", "max", "min", "all", "any", "argmax", "argmin"]
ALONG = {
    "softmax": lambda a, axis: kf.softmax(a, axis=axis),
    "log_softmax": lambda a, axis: kf.log_softmax(a, axis=axis),
    "expand_dims": np.expand_dims,
    "flip": np.flip,
    "stack": lambda a, axis: np.stack(list(a), axis),
    "concat": lambda a, axis: np.concatenate(list(a), axis),
}


def same(result, expected):
    assert isinstance(result, kf.Tensor)
    assert str(result.dtype) == str(expected.dtype)
    np.testing.assert_array_equal(result.numpy(), np.asarray(expected))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_takes_dim_and_keepdim(name):
    x, expected = kf.asarray(A), getattr(np, name)(A, 1, keepdims=True)
    method, function = getattr(x, name), getattr(kf, name)
    same(method(dim=1, keepdim=True), expected)
    same(method(1, keepdim=True), expected)
    same(method(axis=1, keepdims=True), expected)
    same(function(x, dim=1, keepdim=True), expected)
    same(function(x, 1, keepdims=True), expected)
    same(method(dim=None), getattr(np, name)(A))
    if not name.startswith("arg"):
        same(method(dim=(0, -1)), getattr(np, name)(A, (0, -1)))
        same(function(x, (0, -1)), getattr(np, name)(A, (0, -1)))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_axis_is_given_once(name):
    x = kf.asarray(A)
    for call in (getattr(x, name), lambda *a, **k: getattr(kf, name)(x, *a, **k)):
        with pytest.raises(kf.BindingError, match=rf"{name}\(\) got both 'axis' and 'dim'"):
            call(1, dim=1)
        with pytest.raises(
            kf.BindingError, match=r"keyword argument 'axes'. Did you mean 'axis'\?"
        ):
            call(axes=1)


@pytest.mark.parametrize("name", ALONG)
def test_what_goes_along_an_axis_takes_it_by_position_and_as_dim(name):
    function = getattr(kf, name)
    given = list(kf.asarray(A)) if name in ("stack", "concat") else kf.asarray(A)
    expected = ALONG[name](A if name not in ("softmax", "log_softmax") else kf.asarray(A), 1)
    same(function(given, 1), expected)
    same(function(given, axis=1), expected)
    same(function(given, dim=1), expected)
    with pytest.raises(kf.BindingError, match="got both 'axis' and 'dim'"):
        function(given, 1, dim=1)


def test_methods_that_go_along_an_axis_take_dim():
    x = kf.asarray(A[:, :1])
    same(x.squeeze(dim=1), A[:, 0])
    same(x.unsqueeze(dim=1), A[:, None, :1])
    same(x.flip(dim=2), A[:, :1, ::-1])
    same(x.softmax(dim=0), x.softmax(0))
    same(kf.squeeze(x, dim=1), A[:, 0])
    same(kf.squeeze(x), A[:, 0])
    same(kf.take(kf.asarray(A), kf.asarray([1, 0]), 2), A[..., [1, 0]])
    for method in (x.squeeze, x.unsqueeze, x.flip, x.softmax):
        with pytest.raises(kf.BindingError, match="got both 'axis' and 'dim'"):
            method(1, dim=1)
        with pytest.raises(kf.BindingError, match="unexpected keyword argument 'axes'"):
            method(axes=1)
    with pytest.raises(kf.BindingError, match="needs the axis"):
        x.unsqueeze()


def test_operators_along_axes_take_one_number():
    x, aten = kf.asarray(A), kf.ops.aten
    same(aten.sum(x, 0), A.sum(0))
    same(aten.sum(x, -1, True), A.sum(-1, keepdims=True))
    same(aten.mean(x, 1), A.mean(1))
    same(aten.amax(x, 1), A.max(1))
    same(aten.amin(x, dim=1), A.min(1))
    same(aten.any(x, 0), A.any(0))
    same(aten.all(x, [0, 2]), A.all((0, 2)))
    assert aten.sum.dim.schema.startswith("aten::sum.dim(Tensor self, int[1]? dim,")
    x = x.requires_grad_()
    aten.sum(x * 2, 0)[0].sum().backward()
    assert x.grad.sum().item() == 2 * 2 * 4
    batched = kf.vmap(lambda row: aten.amax(row, 0))(kf.asarray(A))
    same(batched, A.max(1))


def test_sizes_one_by_one():
    for make in (kf.zeros, kf.ones, kf.empty, kf.rand, kf.randn):
        assert make(2, 3).shape == (2, 3)
        assert make(2, 3, dtype="float32").dtype == "float32"
        assert make((2, 3)).shape == make([2, 3]).shape == make(shape=(2, 3)).shape == (2, 3)
        assert make(4).shape == (4,)
        assert make(()).shape == ()
        assert make(np.int64(2), 3).shape == (2, 3)
        with pytest.raises(kf.BindingError, match="must be whole numbers in a tuple or list"):
            make((2, 3), "float32")
    x = kf.asarray(A)
    same(kf.reshape(x, -1), A.ravel())
    same(kf.reshape(x, 4, -1), A.reshape(4, -1))
    same(kf.reshape(x, (4, -1)), A.reshape(4, -1))
    same(kf.broadcast_to(kf.asarray(1.0), 2, 3), np.ones((2, 3)))
    same(kf.broadcast_to(kf.asarray(1.0), 2), np.ones(2))


@pytest.mark.parametrize("name", [*REDUCTIONS, "amax", "amin"])
def test_numpys_functions_take_a_tensor(name):
    x, function = kf.asarray(A), getattr(np, name)
    same(function(x), function(A))
    same(function(x, 1), function(A, 1))
    same(function(x, axis=1, keepdims=True), function(A, axis=1, keepdims=True))
    out = kf.asarray(np.empty_like(function(A, 1)))
    assert function(x, 1, out=out) is out
    same(out, function(A, 1))


def test_numpys_functions_leave_gradients_and_devices_alone():
    x = kf.asarray(A, copy=True).requires_grad_()
    np.sum(x * x).backward()
    same(x.grad, 2 * A)
    assert str(np.mean(kf.empty((2, 3), device="meta"), axis=0).device) == "meta"


def test_numpys_sum_takes_a_dtype():
    same(np.sum(kf.asarray(A), dtype="float32"), A.sum(dtype="float32"))
    with pytest.raises(kf.BindingError, match="unexpected keyword argument 'where'"):
        np.sum(kf.asarray(A), where=A > 3)


def test_numpy_takes_a_keyfold_dtype():
    for dtype in vars(kf).values():
        if not isinstance(dtype, kf.DType) or dtype == kf.bfloat16:
            continue
        assert np.dtype(dtype) == np.dtype(dtype.name) == dtype.dtype
        assert np.zeros(2, dtype=dtype).dtype == np.dtype(dtype.name)
        assert np.asarray([1], dtype).dtype == dtype
    x = kf.asarray([1.5])
    assert np.dtype(x.dtype) == np.float64
    assert np.arange(3).astype(x.dtype).dtype == np.float64


def test_numpy_has_no_bfloat16():
    assert not hasattr(kf.bfloat16, "dtype")
    with pytest.raises(TypeError, match="bfloat16"):
        np.dtype(kf.bfloat16)


def test_the_methods_show_what_they_take():
    shown = inspect.signature(kf.Tensor.sum)
    assert list(shown.parameters)[1:] == ["axis", "dtype", "keepdims", "out", "dim", "keepdim"]


@pytest.mark.parametrize("name", [*REDUCTIONS, *ALONG, "squeeze", "take"])
def test_an_axis_that_is_the_default_is_given_once_too(name):
    function, x = getattr(kf, name), kf.asarray(A)
    default = inspect.signature(function).parameters["axis"].default
    given = {"take": [x, kf.asarray([0])], "stack": [[x]], "concat": [[x]]}.get(name, [x])
    for axis in {0, -1, default} - {None}:
        with pytest.raises(kf.BindingError, match=rf"{name}\(\) got both 'axis' and 'dim'"):
            function(*given, axis=int(axis), dim=0)


def test_softmax_is_told_its_axis_once():
    x = kf.asarray(A)
    with pytest.raises(kf.BindingError, match=r"Tensor.softmax\(\) got both 'axis' and 'dim'"):
        x.softmax(axis=-1, dim=0)
    same(x.softmax(), x.softmax(-1))
    same(kf.softmax(x), kf.softmax(x, -1))


def test_concat_flattens_where_dim_is_none():
    x = kf.asarray(A)
    same(kf.concat([x, x], dim=None), np.concatenate([A, A], None))
    same(kf.concat([x, x]), np.concatenate([A, A]))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_whether_axes_stay_is_said_once(name):
    x, expected = kf.asarray(A), getattr(np, name)(A, 1, keepdims=True)
    for call in (getattr(x, name), lambda *a, **k: getattr(kf, name)(x, *a, **k)):
        for keepdims, keepdim in ((False, True), (True, False), (True, True)):
            with pytest.raises(
                kf.BindingError, match=rf"{name}\(\) got both 'keepdims' and 'keepdim'"
            ):
                call(1, keepdims=keepdims, keepdim=keepdim)
        for word in ("keepdims", "keepdim"):
            for true in (True, 1, np.True_):
                same(call(1, **{word: true}), expected)
            for false in (False, 0, np.False_, None):
                same(call(1, **{word: false}), expected[:, 0])
            with pytest.raises(
                kf.BindingError, match=r"'keepdims' must be True or False, not int 2"
            ):
                call(1, **{word: 2})


@pytest.mark.parametrize("name", REDUCTIONS)
def test_numpys_functions_return_the_array_that_they_write_to(name):
    function = getattr(np, name)
    out = np.empty_like(function(A, 0))
    assert function(kf.asarray(A), axis=0, out=out) is out
    np.testing.assert_array_equal(out, function(A, 0))


def test_an_axis_that_is_none_is_shown_as_it_was_given():
    x = kf.asarray(A)
    for name in REDUCTIONS:
        for axis, shown in ((True, "bool True"), (1.5, "float 1.5"), ("a", "str 'a'")):
            for call in (getattr(x, name), lambda a, name=name: getattr(kf, name)(x, a)):
                with pytest.raises(kf.BindingError, match=f"must be .*, not {shown}$"):
                    call(axis)
        same(getattr(x, name)(np.int64(1)), getattr(np, name)(A, 1))
        same(getattr(kf, name)(x, np.int64(1)), getattr(np, name)(A, 1))
    for function in (kf.squeeze, kf.flip):
        with pytest.raises(kf.BindingError, match=r"'axis' must be .*, not bool True$"):
            function(x, True)
    with pytest.raises(kf.BindingError, match=r"not tuple \(0, 1\)$"):
        x.argmax((0, 1))
    with pytest.raises(kf.BindingError, match=r"not bool True$"):
        x.reshape(True)


def test_sizes_that_are_none_are_shown_as_they_were_given():
    for make in (kf.zeros, kf.ones, kf.empty, kf.rand, kf.randn, lambda s: kf.full(s, 1)):
        assert make(np.array([2, 3])).shape == (2, 3)
        assert make(np.array(4)).shape == (4,)
        assert make(kf.asarray([2, 3])).shape == (2, 3)
        assert make(kf.asarray(4)).shape == (4,)
        for shape, shown in (
            (True, "bool True"),
            (np.array([2.0]), "numpy.ndarray float64[1]"),
            (kf.asarray([2.0]), "keyfold.Tensor float64[1]"),
        ):
            with pytest.raises(kf.BindingError, match=rf"'shape' must be .*{re.escape(shown)}$"):
                make(shape)
    with pytest.raises(kf.BindingError, match=r"tuple or list, or one by one, not int 2, str 'f4'"):
        kf.zeros(2, "f4")
    with pytest.raises(kf.BindingError, match=r"reshape\(\) .*, not int 4, bool True$"):
        kf.reshape(kf.asarray(A), 4, True)


WHOLE = {
    "numpy": lambda value: np.array(value),
    "tensor": lambda value: kf.asarray(value),
    "int32": lambda value: np.array(value, dtype="int32"),
}


@pytest.mark.parametrize("made", WHOLE.values(), ids=WHOLE)
def test_arrays_of_whole_numbers_stand_for_numbers_and_lists(made):
    values = np.arange(6.0).reshape(2, 3)
    x = kf.asarray(values)
    assert x.sum(made(0)).tolist() == values.sum(0).tolist()
    assert x.sum(made([0, 1])).item() == 15
    assert x.softmax(made(-1)).tolist() == x.softmax(-1).tolist()
    assert x.reshape(made(6)).shape == (6,)
    assert x.reshape(made([3, 2])).tolist() == values.reshape(3, 2).tolist()
    assert x.reshape(made(3), 2).shape == (3, 2)
    assert x.permute(made([1, 0])).shape == (3, 2)
    assert kf.ops.aten.select.int(x, made(1), made(0)).tolist() == values[:, 0].tolist()


@pytest.mark.parametrize("axis", [True, np.array(True), 0.0, np.array(0.0), np.zeros((1, 1), int)])
def test_what_is_no_axis_is_refused_by_name(axis):
    x = kf.asarray([[1.0, 2.0]])
    for method in (x.sum, x.softmax, x.argmax):
        with pytest.raises(kf.BindingError, match="argument 'axis' must be a whole number"):
            method(axis)


def test_a_traced_number_is_no_axis():
    with pytest.raises(kf.TraceError, match="use as an index"):
        kf.trace(lambda x, axis: x.sum(axis), kf.asarray([[1.0]]), kf.asarray(0))
