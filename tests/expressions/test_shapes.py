"""Results whose shape no input gives: `shape=`, `out=`, and expressions that need neither."""

import numpy as np
import pytest

import keyfold as kf

TABLE = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])


def test_the_output_gives_the_shape():
    take = kf.Expression("t[index]")
    out = np.zeros(4)
    assert take(TABLE, out=out) is out
    assert out.tolist() == [3, 1, 4, 1]
    square = np.zeros((2, 3))
    assert take(TABLE, out=square) is square
    assert square.tolist() == TABLE.reshape(2, 3).tolist()
    columns = np.zeros((3, 2)).T
    kf.Expression("t[index(0)] + 10 * index(1)")(TABLE, out=columns)
    assert columns.tolist() == [[3, 1, 4], [13, 11, 14]]


def test_a_keyword_gives_the_shape():
    take = kf.Expression("t[5 - index]")
    got = take(TABLE, shape=(2, 3))
    assert isinstance(got, np.ndarray)
    assert got.tolist() == [[9, 5, 1], [4, 1, 3]]
    assert take(TABLE, shape=2).tolist() == [9, 5]
    assert take(TABLE, shape=[6]).tolist() == TABLE[::-1].tolist()
    assert take(TABLE, shape=()).shape == ()
    assert take(TABLE, shape=()) == 9.0
    assert take(TABLE, shape=(0, 3)).shape == (0, 3)
    assert isinstance(take(kf.asarray(TABLE), shape=(2,)), kf.Tensor)
    out = np.zeros(3)
    assert take(TABLE, shape=3, out=out) is out
    assert out.tolist() == [9, 5, 1]


def test_places_alone_make_an_array():
    assert kf.Expression("index")(shape=4).tolist() == [0, 1, 2, 3]
    out = np.zeros((2, 2))
    kf.Expression("index(0) - index(1)")(out=out)
    assert out.tolist() == [[0, 1], [-1, 0]]
    ramp = kf.Expression("start + step * index", params=["start", "step"])
    assert ramp(shape=3, start=1.0, step=0.5).tolist() == [1.0, 1.5, 2.0]


def test_without_a_shape_it_is_an_error_that_says_how(raises_saying):
    for expression, arrays in [
        (kf.Expression("t[index]"), [TABLE]),
        (kf.Expression("index"), []),
        (kf.Expression("t[index(0)] + u[0]"), [TABLE, TABLE]),
    ]:
        with raises_saying(kf.ShapeError, "shape=", "()", "out=", "element by element"):
            expression(*arrays)


def test_one_element_is_enough_where_all_are_the_same():
    assert kf.Expression("t[2] + t[4]")(TABLE) == 9.0
    assert kf.Expression("a + 1", params=["a"])(a=2).item() == 3
    # A shape repeats it.
    assert kf.Expression("t[2]")(TABLE, shape=3).tolist() == [4, 4, 4]


def test_a_shape_that_the_inputs_have_anyway_may_be_said(raises_saying):
    double = kf.Expression("x * 2")
    assert double(TABLE, shape=6).tolist() == (TABLE * 2).tolist()
    with raises_saying(kf.ShapeError, "'shape'", "[3]", "[6]"):
        double(TABLE, shape=3)


@pytest.mark.parametrize("shape", ["ab", 2.5, [1, "x"], object(), True, (2, False), np.True_])
def test_what_is_no_shape_is_refused(shape, raises_saying):
    with raises_saying(kf.BindingError, "'shape'", "(2, 3)"):
        kf.Expression("index")(shape=shape)


def test_a_negative_size_is_refused(raises_saying):
    with raises_saying(kf.ShapeError, "'shape'", "-1"):
        kf.Expression("index")(shape=(2, -1))
    with raises_saying(kf.ShapeError, "'out'", "[2]", "[3]"):
        kf.Expression("index")(shape=3, out=np.zeros(2))
    with raises_saying(kf.InvalidValue, "'shape'", "parameter"):
        kf.Expression("x * shape", params=["shape"])


def test_an_operator_takes_its_shape_as_an_argument(define, raises_saying):
    take = define("take(Tensor t, *, int[]? shape=None) -> Tensor", "t[index] * 2")
    assert take(TABLE, shape=[2, 3]).tolist() == (TABLE * 2).reshape(2, 3).tolist()
    out = np.zeros(3)
    assert take(TABLE, out=out) is out
    assert out.tolist() == [6, 2, 8]
    with raises_saying(kf.ShapeError, "shape=", "out="):
        take(TABLE)
    meta = kf.infer_meta(take, TABLE, shape=[4])
    assert tuple(meta.shape) == (4,)
    count = define("count(int[] shape, float step) -> Tensor", "index * step")
    assert count([3], 0.5).tolist() == [0.0, 0.5, 1.0]
    with raises_saying(kf.RegistrationError, "'sizes'", "int[] shape"):
        define("other(Tensor t, int[] sizes) -> Tensor", "t[index]")


def test_it_works_under_the_layers():
    take = kf.Expression("t[index] * 2")
    rows = kf.asarray(np.arange(6.0).reshape(2, 3))
    batched = kf.vmap(lambda row: take(row, shape=2))(rows)
    assert np.asarray(batched.numpy()).tolist() == [[0, 2], [6, 8]]
    graph = kf.trace(lambda t: take(t, shape=(2,)) + 1, kf.asarray(TABLE))
    assert "keyfold::elementwise" in str(graph)
    shape = kf.infer_meta(
        "keyfold::elementwise", [TABLE], [], expression="t[1]: t[index]", shape=[7]
    )
    assert tuple(shape.shape) == (7,)
