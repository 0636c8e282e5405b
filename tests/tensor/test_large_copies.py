"""Large copies on the host use the threads of the pool: the same bytes for any number of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import keyfold as kf

pytestmark = pytest.mark.one_python

THREADS = [1, 2, 3, 8]


@pytest.fixture(params=THREADS)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = kf.get_num_threads()
    kf.set_num_threads(request.param)
    yield request.param
    kf.set_num_threads(before)


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return (np.arange(size) % 251).astype(np.uint8).view(dtype).reshape(shape)


@pytest.fixture(scope="module", params=["uint8", "int16", "float32", "complex128"])
def views(request: pytest.FixtureRequest) -> list[tuple[np.ndarray, bytes]]:
    """Views of every kind, each with its bytes in row-major order; made once for all threads."""
    x = numbers(1031, 1033, dtype=request.param)
    wide = numbers(2062, 1033, dtype=request.param)
    deep = numbers(7, 300, 5, 131, dtype=request.param)
    views = [x.T, x[::-1].T, x.T[:, ::-1], wide[::2], wide[1::2, 5:].T]
    views += [deep.transpose(3, 1, 0, 2), deep.transpose(2, 3, 1, 0), deep[:, ::-1].swapaxes(1, 3)]
    return [(view, view.tobytes()) for view in views]


def test_contiguous_gives_the_bytes_of_numpy(
    threads: int, views: list[tuple[np.ndarray, bytes]]
) -> None:
    for view, expected in views:
        copy = kf.ops.aten.contiguous(kf.from_numpy(view))
        assert copy.is_contiguous()
        assert copy.numpy().tobytes() == expected, view.strides
        # A tensor that can't be viewed is copied by the host's memory.
        flat = kf.reshape(kf.from_numpy(view), (-1,))
        assert flat.numpy().tobytes() == expected, view.strides


def test_clones_and_copies_into_strided_tensors(threads: int) -> None:
    x = numbers(1200, 1100)
    assert kf.ops.aten.clone(kf.from_numpy(x)).numpy().tobytes() == x.tobytes()
    target = np.zeros((1100, 2400), np.float32)
    kf.from_numpy(target)[:, ::2].copy_(kf.from_numpy(x).T)
    assert target[:, ::2].tobytes() == x.T.tobytes()
    assert not target[:, 1::2].any()
    row = numbers(1100)
    whole = np.zeros((1200, 1100), np.float32)
    kf.from_numpy(whole).copy_(kf.from_numpy(row))
    assert whole.tobytes() == np.broadcast_to(row, whole.shape).tobytes()


def test_a_copy_onto_itself_in_another_place(threads: int) -> None:
    x = numbers(1500, 1100)
    expected = x.copy()
    expected[1:] = x[:-1].copy()
    tensor = kf.from_numpy(x)
    tensor[1:].copy_(tensor[:-1])
    assert x.tobytes() == expected.tobytes()
    square = numbers(1100, 1100)
    expected = square.T.copy()
    tensor = kf.from_numpy(square)
    tensor.copy_(tensor.T)
    assert square.tobytes() == expected.tobytes()
