"""Arrays of ml_dtypes in plans, and bfloat16 without them."""

import copy

import numpy as np
import pytest

import keyfold as kf

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
needs_ml_dtypes = pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes isn't installed")


def doubled(io, result=None):
    """2 x, of a data type."""
    g = kf.cudnn.Graph(io_data_type=io)
    x = g.tensor([2, 3], name="x")
    y = g.add(x, x).set_output(True).set_name("y").set_data_type(result or io)
    return g, x, y


def ones(name):
    return np.ones((2, 3), getattr(ml_dtypes, name))


@needs_ml_dtypes
@pytest.mark.parametrize("name", NARROW)
def test_dtypes_are_data_types(name):
    dtype = getattr(ml_dtypes, name)
    for given in (dtype, np.dtype(dtype)):
        assert kf.cudnn.Graph().tensor([2], data_type=given).data_type == name


@needs_ml_dtypes
@pytest.mark.parametrize("name", NARROW)
def test_a_tensor_is_like_an_array(name):
    array = ones(name).T
    x = kf.cudnn.Graph().tensor_like(array, name="x")
    assert (x.dim, x.stride, x.data_type) == ([3, 2], [1, 3], name)


@needs_ml_dtypes
@pytest.mark.parametrize("name", NARROW)
def test_arrays_go_in_and_come_out(name):
    g, x, y = doubled(name)
    out = g.build()({x: ones(name)})
    assert type(out[y]) is np.ndarray
    assert out[y].dtype == getattr(ml_dtypes, name)
    np.testing.assert_array_equal(out["y"].astype(np.float32), np.full((2, 3), 2.0))


@needs_ml_dtypes
@pytest.mark.parametrize("name", NARROW)
def test_no_copy_is_made_of_arguments(name):
    g, x, y = doubled(name)
    plan = g.build()
    array, given = ones(name), np.zeros((2, 3), getattr(ml_dtypes, name))
    array.flags.writeable = False
    out = plan({"x": array}, out={"y": given})
    assert out[y] is given
    assert (given.astype(np.float32) == 2).all()
    # Memory that overlaps is seen, so it is the array's own.
    memory = np.zeros(8, getattr(ml_dtypes, name))
    with pytest.raises(kf.InvalidValue, match="overlaps"):
        plan({x: memory[:6].reshape(2, 3)}, out={y: memory[2:].reshape(2, 3)})
    with pytest.raises(kf.ReadOnlyError):
        plan({x: ones(name)}, out={y: array})
    fresh = plan({x: array})[y]
    fresh[:] = 0
    assert fresh.flags.writeable


@needs_ml_dtypes
def test_strides_stay():
    array = np.arange(24).reshape(2, 2, 3, 2).astype(ml_dtypes.bfloat16).transpose(0, 3, 1, 2)
    g = kf.cudnn.Graph(io_data_type="bfloat16")
    x = g.tensor_like(array)
    y = g.identity(x).set_output(True)
    out = g.build()({x: array})[y]
    assert out.strides == array.strides
    np.testing.assert_array_equal(out, array)


@needs_ml_dtypes
def test_numpy_beside_them_gives_numpy():
    g = kf.cudnn.Graph(io_data_type="float32")
    x, w = g.tensor([2, 3], data_type="float8_e5m2"), g.tensor([2, 3])
    y = g.add(x, w).set_output(True).set_data_type("bfloat16")
    z = g.neg(y).set_output(True)
    out = g.build()({x: ones("float8_e5m2"), w: np.ones((2, 3), np.float32)})
    assert {type(array) for array in out.values()} == {np.ndarray}
    assert (out[y].dtype, out[z].dtype) == (ml_dtypes.bfloat16, np.float32)
    np.testing.assert_array_equal(out[z], np.full((2, 3), -2.0))


@needs_ml_dtypes
def test_tensors_beside_them_give_tensors():
    g = kf.cudnn.Graph(io_data_type="bfloat16")
    x, w = g.tensor([2, 3]), g.tensor([2, 3])
    y = g.add(x, w).set_output(True)
    out = g.build()({x: ones("bfloat16"), w: kf.ones((2, 3), dtype="bfloat16")})[y]
    assert (type(out), str(out.dtype)) == (kf.Tensor, "bfloat16")
    assert out.tolist() == [[2.0] * 3] * 2


@needs_ml_dtypes
def test_an_array_of_another_of_them_is_refused():
    g, x, _ = doubled("float8_e5m2")
    with pytest.raises(kf.DTypeError, match='"x" is of float8_e5m2, and its array of float8_e4m3f'):
        g.build()({x: ones("float8_e4m3fn")})
    with pytest.raises(kf.InvalidValue, match=r"""^plan\(\): "x" is missing; 'y2' is no input"""):
        g.build()({"y2": ones("float8_e5m2")})


@needs_ml_dtypes
def test_a_number_of_theirs_is_a_number():
    g = kf.cudnn.Graph(io_data_type="bfloat16")
    x = g.tensor([2, 3])
    factor = g.tensor([1, 1], is_pass_by_value=True)
    y = g.mul(x, factor).set_output(True)
    out = g.build()({x: ones("bfloat16"), factor: ml_dtypes.bfloat16(1.5)})[y]
    assert (out == 1.5).all()


def test_a_bfloat16_result_of_numpy_arrays_is_refused_before_the_run():
    g, x, y = doubled("float32", result="bfloat16")
    plan = g.build()
    array = np.ones((2, 3), np.float32)
    with pytest.raises(kf.DTypeError, match=r'"y" is of bfloat16.*asarray.*out=.*"float32"'):
        plan({x: array})
    out = plan({x: kf.asarray(array)})[y]
    assert str(out.dtype) == "bfloat16"
    given = kf.zeros((2, 3), dtype="bfloat16")
    assert plan({x: array}, out={y: given})[y] is given
    assert given.tolist() == [[2.0] * 3] * 2


def exp(g, data_type=None):
    """A graph with the exponentials of float32, of the data type or of the graph's own."""
    y = g.exp(g.tensor([2], data_type="float32", name="x")).set_output(True).set_name("y")
    return g if data_type is None else y.set_data_type(data_type)._graph


def of_float32():
    return kf.cudnn.Graph(io_data_type="float32")


def of_bfloat16():
    return kf.cudnn.Graph(io_data_type="bfloat16")


WAYS = {
    "the graph's": lambda: exp(of_bfloat16()),
    "the tensor's": lambda: exp(of_float32(), "bfloat16"),
    "by its short name": lambda: exp(of_float32(), "bf16"),
    "read": lambda: kf.cudnn.Graph.from_json(exp(of_float32(), kf.bfloat16).to_json()),
    "of a graph that was read": lambda: exp(kf.cudnn.Graph.from_json(of_bfloat16().to_json())),
    "copied": lambda: copy.deepcopy(exp(of_bfloat16())),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_bfloat16_result_is_known_before_the_run_however_it_came_to_be(way):
    g = way()
    given = np.ones(2, np.float32)
    for plan in (g.build(), *kf.cudnn.plan_cache.prepare(g, [{"x": [2]}])):
        with pytest.raises(kf.DTypeError, match=r'^plan\(\): "y" is of bfloat16'):
            plan({"x": given})


def test_a_refused_run_writes_nothing():
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor([2, 3])
    y = g.exp(x).set_output(True)
    g.neg(x).set_data_type("bfloat16").set_output(True)
    given = np.zeros((2, 3), np.float32)
    with pytest.raises(kf.DTypeError):
        g.build()({x: np.ones((2, 3), np.float32)}, out={y: given})
    assert not given.any()


def test_eight_bit_floats_are_bytes_otherwise():
    g, x, y = doubled("float8_e4m3fn")
    one = np.full((2, 3), 0x38, np.uint8)
    np.testing.assert_array_equal(g.build()({x: one})[y], np.full((2, 3), 0x40, np.uint8))
