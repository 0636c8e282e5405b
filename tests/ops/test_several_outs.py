"""`out=` of operators with several results: the caller's arrays are written and returned."""

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten
A = np.random.default_rng(1).normal(size=(3, 5, 4))
SQUARE = A[:, :4] + A[:, :4].transpose(0, 2, 1)

FUNCTIONS = {
    "svd": (A, {"full_matrices": False}),
    "qr": (A, {}),
    "eigh": (SQUARE, {}),
    "slogdet": (SQUARE, {}),
}


@pytest.mark.parametrize("library", [np.asarray, kf.asarray])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_linear_algebra_writes_a_tuple_of_arrays(name, library):
    x, options = FUNCTIONS[name]
    function, x = getattr(kf.linalg, name), library(x)
    fresh = function(x, **options)
    outs = tuple(library(np.zeros(y.shape)) for y in fresh)
    results = function(x, **options, out=outs)
    assert type(results) is type(fresh)
    for result, out, wanted in zip(results, outs, fresh, strict=True):
        assert result is out
        np.testing.assert_array_equal(np.asarray(out), np.asarray(wanted))


def test_views_and_wider_dtypes_are_written():
    x = A.astype(np.float32)
    wanted = kf.linalg.qr(x)
    q, r = np.zeros((3, 4, 5)).transpose(0, 2, 1), np.zeros((3, 4, 8), np.float32)[..., ::2]
    kf.linalg.qr(x, out=(q, r))
    np.testing.assert_array_equal(q, wanted.Q.astype(np.float64))
    np.testing.assert_array_equal(r, wanted.R)


def test_an_argument_may_be_an_out():
    x = np.random.default_rng(2).normal(size=(2, 3, 4))
    wanted = aten.native_layer_norm(x.copy(), [4], None, None, 1e-5)
    mean, rstd = np.zeros((2, 3, 1)), np.zeros((2, 3, 1))
    results = aten.native_layer_norm.out(x, [4], None, None, 1e-5, out0=x, out1=mean, out2=rstd)
    assert results[0] is x
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_pooling_writes_values_and_indices():
    x = np.arange(32.0).reshape(1, 2, 4, 4)
    values, indices = np.zeros((1, 2, 2, 2)), np.zeros((1, 2, 2, 2), np.int64)
    found = aten.max_pool2d_with_indices.out(x, 2, out=values, indices=indices)
    assert found[0] is values
    assert found[1] is indices
    assert indices[0, 0].tolist() == [[5, 7], [13, 15]]
    assert values[0, 1].tolist() == [[21, 23], [29, 31]]


def test_batch_norm_updates_the_running_statistics():
    x = np.random.default_rng(3).normal(size=(6, 2, 5))
    running = [np.zeros(2), np.ones(2)]
    wanted_running = [np.zeros(2), np.ones(2)]
    wanted = aten.native_batch_norm(x, None, None, *wanted_running, True, 0.1, 1e-5)
    names = {"out": np.zeros_like(x), "save_mean": np.zeros(2), "save_invstd": np.zeros(2)}
    aten.native_batch_norm.out(x, None, None, *running, True, 0.1, 1e-5, **names)
    for out, expected in zip(names.values(), wanted, strict=True):
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(running, wanted_running)
    refused = dict(names, save_invstd=np.zeros(3))
    with pytest.raises(kf.ShapeError, match="argument 'save_invstd'"):
        aten.native_batch_norm.out(x, None, None, *running, True, 0.1, 1e-5, **refused)
    np.testing.assert_array_equal(running, wanted_running)


def test_dropout_by_threshold_takes_a_tuple():
    x = np.ones(1000, np.float32)
    fresh = kf.dropout_threshold(x, 1 << 31, 2.0, 7)
    outs = np.zeros(1000, np.float32), np.zeros(1000, bool)
    results = kf.dropout_threshold(x, 1 << 31, 2.0, 7, out=outs)
    for result, out, wanted in zip(results, outs, fresh, strict=True):
        assert result is out
        np.testing.assert_array_equal(out, wanted)
    with pytest.raises(kf.BindingError, match="'out' must be a tuple of 2 arrays"):
        kf.dropout_threshold(x, 1 << 31, 2.0, 7, out=outs[0])
    with pytest.raises(kf.BindingError, match="'out' has 1 arrays, but there are 2 results"):
        kf.dropout_threshold(x, 1 << 31, 2.0, 7, out=outs[:1])


def test_refused_outs_name_the_argument_and_nothing_is_written():
    q, r = np.zeros((3, 5, 4)), np.zeros((3, 4, 4))
    whole = np.zeros(120)
    twins = whole[:60].reshape(3, 5, 4), whole[40:88].reshape(3, 4, 4)
    read_only = np.zeros((3, 4, 4))
    read_only.flags.writeable = False
    cases = [
        ((q, r[:2]), kf.ShapeError, r"argument 'R' has shape \[2, 4, 4\]"),
        ((q, r.astype(np.int64)), kf.DTypeError, "argument 'R': can't write float64"),
        ((q, read_only), kf.ReadOnlyError, "argument 'R'"),
        ((q, np.broadcast_to(np.zeros((4, 4)), (3, 4, 4))), kf.Error, "argument 'R'"),
        (twins, kf.InvalidValue, "arguments 'Q' and 'R' share memory"),
        ([q, r], kf.BindingError, "must be a tuple of 2 arrays, for Q, R"),
        ((q,), kf.BindingError, "must be a tuple of 2 arrays, for Q, R"),
    ]
    for out, error, message in cases:
        with pytest.raises(error, match=message):
            kf.linalg.qr(A, out=out)
        assert not any(each.any() for each in (q, r, whole))
    singular = np.stack([np.eye(2), np.full((2, 2), np.nan)])
    outs = tuple(np.zeros(shape) for shape in [(2, 2, 2), (2, 2), (2, 2, 2)])
    with pytest.raises(kf.InvalidValue):
        kf.linalg.svd(singular, out=outs)
    assert not any(out.any() for out in outs)


def test_gradients_are_only_written_where_they_are_wanted():
    grad, x = A, A[::-1].copy()
    _, mean, rstd = aten.native_layer_norm(x, [4], None, None, 1e-5)
    args = (grad, x, [4], mean, rstd, None, None, [True, False, True])
    dx, db = np.zeros_like(x), np.zeros(4)
    results = aten.native_layer_norm_backward.out(*args, out0=dx, out1=None, out2=db)
    assert results[1] is None
    assert results[0] is dx
    assert results[2] is db
    wanted = aten.native_layer_norm_backward(*args)
    np.testing.assert_array_equal(dx, wanted[0])
    np.testing.assert_array_equal(db, wanted[2])
    with pytest.raises(kf.InvalidValue, match="argument 'out1' is given, but"):
        aten.native_layer_norm_backward.out(*args, out0=dx, out1=db, out2=db)
    with pytest.raises(kf.InvalidValue, match="argument 'out2' is None, but its result"):
        aten.native_layer_norm_backward.out(*args, out0=dx, out1=None, out2=None)


def test_layers_with_several_outs():
    x = kf.asarray(SQUARE)
    q, r = kf.zeros((3, 4, 4)), kf.zeros((3, 4, 4))
    q, r = (kf.astype(each, kf.float64) for each in (q, r))

    def each(x, q, r):
        aten.linalg_qr.out(x, Q=q, R=r)
        return q, r

    found = kf.vmap(each)(x, q, r)
    wanted = kf.linalg.qr(x)
    for out, result, expected in zip((q, r), found, wanted, strict=True):
        np.testing.assert_array_equal(out.numpy(), expected.numpy())
        np.testing.assert_array_equal(result.numpy(), expected.numpy())
    x.requires_grad_(True)
    with pytest.raises(kf.GradientError, match="linalg_qr"):
        aten.linalg_qr.out(x, Q=q, R=r)
