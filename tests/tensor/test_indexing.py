"""`x[...]` and `x[...] = y`, against NumPy."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def counted(shape, dtype="float64"):
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@st.composite
def basic(draw):
    shape = draw(shapes)
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6))


@st.composite
def arrays_of_places(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    index = draw(
        hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(min_dims=1, max_dims=2))
    )
    # Some positions counted from the end.
    index = tuple(
        np.where((i >= 0) & (i % 2 == 1), i - n, i) for i, n in zip(index, shape, strict=True)
    )
    # A full slice, a number or a new axis among them.
    mixed = []
    for entry in index:
        kind = draw(st.sampled_from(["array", "array", "slice", "number", "newaxis", "tensor"]))
        if kind == "slice":
            mixed.append(slice(None, None, draw(st.sampled_from([1, 2, -1]))))
        elif kind == "number":
            mixed.append(int(entry.flat[0]))
        elif kind == "newaxis":
            mixed += [None, entry]
        else:
            mixed.append(kf.from_numpy(entry) if kind == "tensor" else entry)
    return shape, tuple(mixed)


@st.composite
def of_all_kinds(draw):
    """A shape, and an index with entries of every kind in any order."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=3))
    picked = draw(hnp.broadcastable_shapes((2,), max_dims=2, max_side=2))
    kinds = ["number", "slice", "array", "list", "0-dim", "newaxis", "ellipsis", "mask", "tensor"]
    entries, dim = [], 0
    seen_ellipsis = False
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6)):
        if kind == "newaxis":
            entries.append(None)
        elif kind == "ellipsis":
            if not seen_ellipsis:
                entries.append(...)
                seen_ellipsis = True
        elif dim < len(shape):
            # Sizes are the last dimensions' behind a `...`, which may be others: all of them count
            # from the smallest.
            size = min(shape)
            places = hnp.arrays(np.int64, picked, elements=st.integers(-size, size - 1))
            if kind == "number":
                entries.append(draw(st.integers(-size, size - 1)))
            elif kind == "slice":
                entries.append(draw(st.slices(size)))
            elif kind == "0-dim":
                entries.append(np.array(draw(st.integers(-size, size - 1))))
            elif kind == "mask":
                # One element, so that it broadcasts with everything.
                if len(set(shape)) > 1:
                    continue
                mask = np.zeros(shape[0], dtype=bool)
                mask[draw(st.integers(0, shape[0] - 1))] = True
                entries.append(mask)
            elif kind == "list":
                entries.append(draw(places).reshape(-1).tolist()[:1])
            else:
                array = draw(places)
                entries.append(kf.from_numpy(array) if kind == "tensor" else array)
            dim += 1
    return shape, tuple(entries)


def numpys(index):
    entries = index if isinstance(index, tuple) else (index,)
    return tuple(i.numpy() if isinstance(i, kf.Tensor) else i for i in entries)


@given(case=basic())
@settings(max_examples=300)
def test_numbers_and_slices_give_numpys_view(case):
    shape, index = case
    a = counted(shape)
    expected = np.asarray(a[index])
    view = kf.from_numpy(a)[index]
    assert isinstance(view, kf.Tensor)
    assert np.array_equal(view.numpy(), expected)
    assert view.shape == expected.shape
    if expected.size and isinstance(a[index], np.ndarray):
        assert view.data_ptr() == expected.ctypes.data


@given(case=basic())
@settings(max_examples=200)
def test_writing_through_numbers_and_slices(case):
    shape, index = case
    a, b = counted(shape), counted(shape)
    values = -1.0 - counted(np.shape(a[index]))
    a[index] = values
    kf.from_numpy(b)[index] = kf.from_numpy(np.asarray(values))
    assert np.array_equal(a, b)
    a[index] = 5
    kf.from_numpy(b)[index] = 5
    assert np.array_equal(a, b)


@given(case=arrays_of_places())
@settings(max_examples=300)
def test_arrays_of_positions_pick_as_in_numpy(case):
    shape, index = case
    a = counted(shape)
    expected = np.asarray(a[numpys(index)])
    picked = kf.from_numpy(a)[index]
    assert picked.shape == expected.shape
    assert np.array_equal(picked.numpy(), expected)


@given(case=arrays_of_places())
@settings(max_examples=200)
def test_writing_to_arrays_of_positions(case):
    shape, index = case
    a, b = counted(shape), counted(shape)
    a[numpys(index)] = -7
    kf.from_numpy(b)[index] = -7
    assert np.array_equal(a, b)


@given(case=of_all_kinds())
@settings(max_examples=600)
def test_entries_of_all_kinds_pick_as_in_numpy(case):
    shape, index = case
    a = counted(shape)
    expected = a[numpys(index)]
    picked = kf.from_numpy(a)[index]
    assert picked.shape == np.shape(expected)
    assert np.array_equal(picked.numpy(), expected)
    # A view where NumPy gives one, a copy where it gives that.
    if isinstance(expected, np.ndarray) and expected.size:
        assert np.shares_memory(picked.numpy(), a) == np.shares_memory(expected, a)


@given(case=of_all_kinds(), data=st.data())
@settings(max_examples=400)
def test_entries_of_all_kinds_are_written_as_in_numpy(case, data):
    shape, index = case
    a, b = counted(shape), counted(shape)
    target = np.shape(a[numpys(index)])
    given_shape = data.draw(
        st.sampled_from([target, target[1:], tuple(1 for _ in target), ()]), label="value"
    )
    # Each place gets what it gets from any of the values that are written there: all are equal
    # where places repeat.
    value = -1.0 - counted(given_shape)
    if len(np.unique(counted(shape)[numpys(index)])) < np.prod(target, dtype=int):
        value = np.full(given_shape, -1.0)
    a[numpys(index)] = value
    kf.from_numpy(b)[index] = kf.asarray(value)
    assert np.array_equal(a, b)


def test_arrays_that_stand_apart_give_their_dimensions_first():
    a = np.arange(24).reshape(2, 3, 4)
    x, i = kf.from_numpy(a), np.array([0, 1, 2])
    for index in (
        np.index_exp[:, 0, ..., i],
        np.index_exp[:, i, ..., i],
        np.index_exp[:, i, None, i],
        np.index_exp[0, ..., i, :],
        np.index_exp[i[:2], ..., i[:2], i[:2]],
        np.index_exp[..., i[:2], None, ..., i][:3],
        np.index_exp[:, np.array([True, False, True]), ..., i[:2]],
    ):
        assert x[index].shape == a[index].shape
        assert np.array_equal(x[index].numpy(), a[index])
        b = a.copy()
        values = -1 - np.arange(a[index].size).reshape(a[index].shape)
        kf.from_numpy(b)[index] = values
        expected = a.copy()
        expected[index] = values
        assert np.array_equal(b, expected)


@given(data=st.data())
@settings(max_examples=150)
def test_masks_pick_and_write_as_in_numpy(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    dims = data.draw(st.integers(1, len(shape)))
    mask = data.draw(hnp.arrays(bool, shape[:dims]))
    a, b = counted(shape), counted(shape)
    t = kf.from_numpy(b)
    assert np.array_equal(t[mask].numpy(), a[mask])
    assert np.array_equal(t[kf.from_numpy(mask)].numpy(), a[mask])
    a[mask] = -1
    t[mask] = -1
    assert np.array_equal(a, b)


@pytest.mark.parametrize(
    "index",
    [
        [0, 2],
        [],
        ([0, 1], [1, 1]),
        (0, [0, 2]),
        (0, slice(None), [0, 2]),
        ([0, 1], slice(None), [0, 2]),
        ([0, 1], None, [0, 2]),
        (None, [0, 1]),
        (Ellipsis, [0, 2]),
        ([[0], [1]], [[0, 1]]),
        (slice(1, None), [True, False, True]),
        True,
        False,
        (True, 0),
        (0, False),
        np.int32(1),
        np.array([0, 1], dtype=np.uint8),
        np.array(1),
        slice(-(2**80), 2**80),
        slice(2**80, None, -1),
    ],
)
def test_special_indices_are_numpys(index):
    a = counted((3, 3, 3))
    expected = np.asarray(a[index])
    picked = kf.from_numpy(a)[index]
    assert picked.shape == expected.shape
    assert np.array_equal(picked.numpy(), expected)


def test_an_index_of_nothing_is_another_tensor_on_the_same_memory():
    t = kf.zeros(3)
    assert t[...] is not t
    assert t[...].data_ptr() == t.data_ptr()
    assert t[()].data_ptr() == t.data_ptr()


def test_values_may_be_lists_arrays_and_numbers_of_any_kind_that_fits():
    t = kf.zeros((2, 3), dtype="float32")
    t[0] = [1, 2, 3]
    t[1, :2] = np.array([4, 5])
    t[1, 2] = np.float64(6)
    t[:, [0, 1]] = kf.asarray([[1.5], [2.5]])
    t[t > 5] = True
    assert t.tolist() == [[1.5, 1.5, 3], [2.5, 2.5, 1]]


def test_of_a_place_written_twice_the_last_value_stays():
    t = kf.zeros(3)
    t[[1, 1]] = [5, 6]
    assert t.tolist() == [0, 6, 0]


def test_overlapping_source_and_target():
    t = kf.arange(5)
    t[1:] = t[:-1]
    assert t.tolist() == [0, 0, 1, 2, 3]


def test_meta_tensors_are_indexed_by_shape():
    t = kf.empty((4, 5), device="meta")
    assert t[1:, None, ::2].shape == (3, 1, 3)
    assert t[0].device == "meta"
    t[0] = 1.0


@pytest.mark.parametrize(
    ("index", "kind", "parts"),
    [
        (3, IndexError, ["aten::select", "index 3", "size 3"]),
        (-4, IndexError, ["aten::select", "index -4", "size 3"]),
        (2**70, IndexError, ["out of range"]),
        ((0, 0, 0), IndexError, ["3 indices", "[3, 4]"]),
        ((Ellipsis, Ellipsis), IndexError, ["..."]),
        ([0, 5], IndexError, ["aten::index", "index 5", "size 3"]),
        (np.zeros(4, bool), IndexError, ["mask", "[4]", "[3, 4]"]),
        ((True, [0]), IndexError, ["True", "arrays"]),
        ("a", TypeError, ["whole numbers", "'a'"]),
        (1.0, TypeError, ["whole numbers", "1.0"]),
        ([0.5], TypeError, ["whole numbers or bools", "float64"]),
        (np.array(["x"]), TypeError, ["<U1"]),
        (slice("a", None), TypeError, ["slice", "'a'"]),
        (slice(None, None, 0), ValueError, ["step", "zero"]),
    ],
)
def test_a_wrong_index_says_what_is_wrong(index, kind, parts):
    t = kf.zeros((3, 4))
    for use in [lambda: t[index], lambda: t.__setitem__(index, 1.0)]:
        with pytest.raises(kf.Error, match=".*".join(map(re.escape, parts))) as caught:
            use()
        assert isinstance(caught.value, kind)


@pytest.mark.parametrize("position", [2**63, 2**63 + 5, 2**64 - 1])
def test_an_index_beyond_int64_is_shown_as_it_was_given(position):
    t = kf.zeros((3, 4))
    far, row = np.array([1, position], np.uint64), kf.ones(2)
    aten, square = kf.ops.aten, far.reshape(2, 1)
    calls = {
        "index": lambda: t[far],
        "index_put_": lambda: t.__setitem__(far, 1.0),
        "index_select": lambda: kf.take(t, far, axis=1),
        "gather": lambda: aten.gather(t, 0, square),
        "scatter_add": lambda: aten.scatter_add(t, 0, square, row.reshape((2, 1))),
        "index_add": lambda: aten.index_add(t, 1, far, kf.ones((3, 2))),
    }
    for name, call in calls.items():
        with pytest.raises(kf.IndexOutOfRange, match=f"^aten::{name}: index {position} is out of"):
            call()
    with pytest.raises(kf.IndexOutOfRange, match=f"index {2**63 - 1} is out of range"):
        t[np.array([2**63 - 1], np.uint64)]


def test_a_wrong_value_says_what_is_wrong():
    t = kf.zeros(3, dtype="int64")
    with pytest.raises(kf.DTypeError, match=r"aten::copy_.*float64.*int64"):
        t[:] = kf.zeros(3)
    with pytest.raises(kf.ShapeError, match="aten::copy_"):
        t[:2] = [1, 2, 3]
    with pytest.raises(kf.Error, match=r"int64.*1\.5"):
        t[0] = 1.5
    with pytest.raises(kf.Error, match=r"int64.*1\.5"):
        t[[0]] = 1.5
    assert t.tolist() == [0, 0, 0]


def test_read_only_memory_isnt_written():
    a = np.zeros(3)
    a.flags.writeable = False
    t = kf.from_numpy(a)
    for index in [0, slice(None), [0, 1], a == 0]:
        with pytest.raises(kf.ReadOnlyError, match="read-only"):
            t[index] = 1
    assert not a.any()


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        ((3,), (0,)),
        ((3, 4), (3, 0)),
        ((3, 4), (0, 4)),
        ((3, 4), (0,)),
        ((0, 3), (0, 3)),
        ((), (0,)),
    ],
)
def test_a_mask_without_elements_picks_nothing_as_in_numpy(shape, mask):
    array, mask = np.ones(shape), np.zeros(mask, dtype=bool)
    tensor = kf.asarray(array.copy())
    for key in [mask, kf.asarray(mask)]:
        try:
            expected = array[mask]
        except IndexError:
            with pytest.raises(IndexError):
                tensor[key]
            continue
        assert tensor[key].shape == expected.shape
        tensor[key] = 5.0
        assert tensor.tolist() == array.tolist()
    x = kf.asarray(np.ones((3, 4))).requires_grad_()
    kf.sum(x[np.zeros((3, 0), dtype=bool)]).backward()
    assert x.grad.tolist() == np.zeros((3, 4)).tolist()
