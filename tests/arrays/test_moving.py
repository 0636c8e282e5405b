"""NumPy's memory, and that of buffers, stays where it is while keyfold holds it."""

from __future__ import annotations

import array
import gc
import mmap
import sys
import weakref

import numpy as np
import pytest

import keyfold as kf

aten = kf.ops.aten


@pytest.mark.parametrize(
    "hold",
    [
        pytest.param(kf.asarray, id="asarray"),
        pytest.param(kf.from_numpy, id="from_numpy"),
        pytest.param(lambda a: aten.reshape(a, [10, 10]), id="a result"),
        pytest.param(lambda a: kf.asarray(a[::2]), id="of a view"),
    ],
)
def test_an_array_isnt_resized_while_it_is_held(hold):
    a = np.zeros(100)
    held = hold(a)
    with pytest.raises(ValueError, match="cannot resize"):
        a.resize(100_000, refcheck=False)
    assert np.asarray(held).sum() == 0.0
    del held
    gc.collect()
    a.resize(200, refcheck=False)
    assert a.shape == (200,)


def test_a_held_array_is_freed_with_its_holder():
    a = np.zeros(100)
    gone = weakref.ref(a)
    before = sys.getrefcount(a)
    held = [kf.asarray(a) for _ in range(10)]
    del held
    assert sys.getrefcount(a) == before
    del a
    assert gone() is None


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: bytearray(80), lambda b: b.extend(b"x" * 1000)),
        (lambda: array.array("d", [0.0] * 10), lambda b: b.append(1.0)),
        (lambda: mmap.mmap(-1, 4096), lambda b: b.close()),
    ],
)
def test_a_buffer_isnt_moved_while_it_is_held(make, change):
    buffer = make()
    held = kf.asarray(np.frombuffer(buffer))
    with pytest.raises(BufferError):
        change(buffer)
    assert aten.sum(held).item() == 0.0
