"""Views that repeat elements (`expand`, `broadcast_to`) are read-only everywhere."""

import numpy as np
import pytest

import keyfold as kf

VIEWS = {
    "expand": lambda x: kf.ops.aten.expand(x, [2, 3]),
    "new dimension": lambda x: kf.ops.aten.expand(x, [4, 1, 3]),
    "broadcast_to": lambda x: kf.broadcast_to(x, (2, 3)),
    "broadcast_arrays": lambda x: kf.broadcast_arrays(x, kf.zeros((2, 3)))[0],
    "a part of one": lambda x: kf.ops.aten.expand(x, [4, 3])[1:3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_it_isnt_written(view, raises_saying):
    x = kf.zeros((1, 3))
    repeated = view(x)
    assert repeated.readonly
    for write in (
        lambda: repeated.__setitem__(0, 1.0),
        lambda: repeated.__iadd__(1.0),
        lambda: kf.ops.aten.fill_(repeated, 1.0),
        lambda: kf.ops.aten.copy_(repeated, kf.ones(repeated.shape)),
        lambda: repeated.__setitem__(np.zeros(1, dtype=int), 1.0),
    ):
        with raises_saying(kf.ReadOnlyError, "share memory", "clone()"):
            write()
    assert not x.any()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_other_libraries_get_it_read_only(view):
    repeated = view(kf.zeros((1, 3)))
    assert not np.asarray(repeated).flags.writeable
    assert not repeated.numpy().flags.writeable
    assert not np.from_dlpack(repeated).flags.writeable


def test_numpys_arrays_are_repeated_as_numpy_does():
    a = np.zeros((1, 3))
    repeated = kf.ops.aten.expand(a, [2, 3])
    assert type(repeated) is np.ndarray
    assert np.shares_memory(a, repeated)
    assert not repeated.flags.writeable


def test_without_repetition_it_stays_writable():
    x = kf.zeros((2, 3))
    same = kf.ops.aten.expand(x, [2, -1])
    same[0] = 1.0
    kf.ops.aten.expand(x, [1, 2, 3])[0, 1] = 2.0
    assert x.tolist() == [[1.0] * 3, [2.0] * 3]
    assert not kf.ops.aten.expand(kf.zeros((1, 3)), [2, 3]).to("float64", copy=True).readonly


def test_gradients_that_are_repeated_can_be_changed_in_place():
    x = kf.ones((2, 3)).requires_grad_()
    y = kf.ones((2, 3)).requires_grad_()
    (x + y).sum().backward()
    x.grad *= 0.5
    x.grad[0] = 7.0
    assert x.grad.tolist() == [[7.0] * 3, [0.5] * 3]
    assert y.grad.tolist() == [[1.0] * 3] * 2
    (x + y).sum().backward()
    assert x.grad.tolist() == [[8.0] * 3, [1.5] * 3]
    # A gradient may be a broadcast number, whose strides of 0 tell.
    (grad,) = kf.grad((x * 1.0).sum(), [x])
    assert np.array_equal(grad.numpy(), np.ones((2, 3)))


def test_what_vmap_gives_back_is_ones_own():
    result = kf.vmap(lambda x: kf.ones(2))(kf.zeros((3, 1)))
    result[0] = 5.0
    assert result.tolist() == [[5.0, 5.0], [1.0, 1.0], [1.0, 1.0]]
