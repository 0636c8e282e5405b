"""`keyfold.Tensor`: attributes, Python's protocols, operators seen by layers, errors."""

import gc
import re
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import keyfold as kf

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def saying(*parts):
    """A pattern for `pytest.raises(match=...)`: these parts in this order."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


# ---- attributes ----------------------------------------------------------------------------------


def test_a_tensor_describes_itself():
    t = kf.from_numpy(np.zeros((2, 3), np.float32)[:, ::-1])
    assert t.shape == (2, 3)
    assert t.strides == (3, -1)
    assert (t.ndim, t.size, t.numel(), t.itemsize, t.nbytes) == (2, 6, 6, 4, 24)
    assert t.dtype == kf.float32
    assert str(t.device) == "cpu"
    assert t.keys == kf.DispatchKeySet("CPU")
    assert t.offset == 2
    assert not t.is_contiguous()
    assert not t.readonly


@pytest.mark.parametrize("name", [*DTYPES, "bfloat16"])
def test_each_dtype_is_an_attribute_of_the_module(name):
    dtype = getattr(kf, name)
    assert dtype.name == name
    assert dtype == name
    assert hash(dtype) == hash(name)
    assert kf.zeros(2, dtype=dtype).dtype is dtype
    assert repr(dtype) == f"keyfold.{name}"
    if name != "bfloat16":
        assert dtype == np.dtype(name)
        assert dtype.itemsize == np.dtype(name).itemsize


def test_a_device_has_type_and_index_and_compares_with_names():
    device = kf.zeros(1).device
    assert (device.type, device.index) == ("cpu", 0)
    assert device == "cpu"
    assert device != "cuda:0"
    assert hash(device) == hash(kf.Device("cpu"))
    assert kf.Device("cuda:1").index == 1


def test_requires_grad_is_the_autograd_key():
    t = kf.ones(3)
    assert not t.requires_grad
    assert t.requires_grad_() is t
    assert t.requires_grad
    assert "Autograd" in t.keys
    assert not t.detach().requires_grad
    assert t.detach().data_ptr() == t.data_ptr()
    t.requires_grad_(False)
    assert t.keys == kf.DispatchKeySet("CPU")


def test_whole_numbers_cant_require_grad():
    with pytest.raises(kf.DTypeError, match=saying("int64", "require grad")):
        kf.zeros(3, dtype="int64").requires_grad_()


def test_attributes_cant_be_set():
    t = kf.zeros(3)
    with pytest.raises(AttributeError):
        t.shape = (1, 3)
    with pytest.raises(AttributeError):
        t.anything = 1


# ---- Python's protocols --------------------------------------------------------------------------


def test_one_element_becomes_a_python_number():
    assert float(kf.asarray(2.5)) == 2.5
    assert int(kf.asarray([-2.9])) == -2
    assert complex(kf.asarray(2)) == 2
    assert kf.asarray([[True]]).item() is True
    assert kf.full((), 2**63, dtype="uint64").item() == 2**63
    assert int(kf.asarray(1e300)) == int(1e300)
    assert [10, 20, 30][kf.asarray(1)] == 20
    assert bool(kf.asarray([0.0])) is False


@pytest.mark.parametrize("convert", [float, int, complex, lambda t: t.item()])
def test_several_elements_become_no_number(convert):
    with pytest.raises(kf.InvalidValue, match=saying("one element", "[2]")):
        convert(kf.zeros(2))


def test_conversions_that_lose_something_are_refused():
    with pytest.raises(TypeError, match=saying("(1+2j)", "float")):
        float(kf.asarray(1 + 2j))
    with pytest.raises(TypeError, match=saying("(1+2j)", "int")):
        int(kf.asarray(1 + 2j))
    with pytest.raises(TypeError, match=saying("whole numbers", "float64")):
        [1, 2][kf.asarray(1.0)]
    with pytest.raises(TypeError, match="bool"):
        [1, 2][kf.asarray(True)]
    with pytest.raises(OverflowError):
        int(kf.asarray(np.inf))


@pytest.mark.parametrize("shape", [(2,), (0,), (2, 2)])
def test_several_elements_are_neither_true_nor_false(shape):
    with pytest.raises(kf.InvalidValue, match=saying(str(list(shape)), "any()", "all()")):
        bool(kf.zeros(shape))


def test_len_and_iteration_go_along_the_first_dimension():
    t = kf.from_numpy(np.arange(6).reshape(3, 2))
    assert len(t) == 3
    assert [row.tolist() for row in t] == [[0, 1], [2, 3], [4, 5]]
    rows = iter(t)
    assert rows.__length_hint__() == 3
    next(rows)[0] = 7
    assert t[0, 0].item() == 7
    assert iter(rows) is rows


def test_a_tensor_without_dimensions_has_neither():
    with pytest.raises(TypeError, match=saying("len()")):
        len(kf.asarray(1))
    with pytest.raises(TypeError, match=saying("iterated")):
        iter(kf.asarray(1))


def test_contains_compares_the_elements():
    t = kf.asarray([[1, 2], [3, 4]])
    assert 3 in t
    assert 7 not in t
    assert np.int64(4) in t
    assert "3" not in t


def test_hash_is_identity():
    t = kf.zeros(3)
    u = kf.zeros(3)
    assert hash(t) == hash(t)
    assert {t: 1, u: 2}[u] == 2


def test_comparison_with_anything_else_is_pythons():
    t = kf.zeros(3)
    assert (t == None) is False  # noqa: E711
    assert (t != "x") is True
    with pytest.raises(TypeError, match="'<' not supported"):
        assert t < "x"


def test_weak_references_end_with_the_tensor():
    t = kf.zeros(3)
    gone = []
    reference = weakref.ref(t, gone.append)
    assert reference() is t
    del t
    gc.collect()
    assert reference() is None
    assert gone == [reference]


def test_subclasses_are_refused():
    with pytest.raises(TypeError, match=saying("Sub", "inherit", "register_array_type")):
        type("Sub", (kf.Tensor,), {})


def test_the_class_isnt_called():
    with pytest.raises(TypeError, match=saying("asarray", "zeros")):
        kf.Tensor([1, 2])


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: kf.asarray([1.0, 2.5]), "Tensor([1. , 2.5])"),
        (lambda: kf.asarray([[1, 2], [3, 4]]), "Tensor([[1, 2],\n        [3, 4]])"),
        (lambda: kf.asarray(True), "Tensor(True)"),
        (lambda: kf.ones(2, dtype="float32"), "Tensor([1., 1.], dtype=float32)"),
        (lambda: kf.ones(2, dtype="bfloat16"), "Tensor([1., 1.], dtype=bfloat16)"),
        (lambda: kf.zeros(0), "Tensor([], dtype=float64)"),
        (lambda: kf.zeros((2, 0)), "Tensor([], shape=(2, 0), dtype=float64)"),
        (
            lambda: kf.zeros((3,), device="meta"),
            "Tensor(..., shape=(3,), dtype=float64, device='meta')",
        ),
        (lambda: kf.ones(1).requires_grad_(), "Tensor([1.], requires_grad=True)"),
    ],
)
def test_the_text_is_numpys_plus_what_isnt_default(tensor, text):
    assert repr(tensor()) == str(tensor()) == text


def test_a_large_tensor_is_abbreviated():
    assert len(repr(kf.zeros((1000, 1000)))) < 1000
    assert "..." in repr(kf.zeros(10_000))


@given(
    hnp.arrays(
        st.sampled_from(DTYPES),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
        elements={"allow_nan": False},
    )
)
def test_tolist_is_numpys(a):
    assert kf.from_numpy(a).tolist() == a.tolist()


def test_tolist_of_bfloat16():
    assert kf.full((2,), 1.5, dtype="bfloat16").tolist() == [1.5, 1.5]


# ---- operators -----------------------------------------------------------------------------------


@pytest.fixture
def seen(audit):
    """The operators that a layer sees, in order."""
    names = []

    def watch(op, keyset, args, kwargs):
        names.append(op.name)
        return kf.redispatch(op, keyset.remove(audit), *args, **kwargs)

    handle = kf.fallback(audit, watch)
    with kf.include_keys(audit):
        yield names
    handle.remove()


def test_everything_numeric_goes_through_the_operators(seen):
    t = kf.ones((2, 3))
    t + 1, 1 - t, t @ t.T, t < 2, -t
    t[0, 1:]
    t[t > 0]
    t[0] = 5
    t += 1
    t.reshape(3, 2).sum(axis=0)
    t.to("float32")
    kf.exp(t)
    assert seen == [
        "aten::ones",
        "aten::add.Scalar", "aten::rsub.Scalar", "aten::transpose", "aten::matmul",
        "aten::lt.Scalar", "aten::neg",
        "aten::select.int", "aten::slice.Tensor",
        "aten::gt.Scalar", "aten::index.Tensor",
        "aten::select.int", "aten::fill_.Scalar",
        "aten::add.Scalar", "aten::copy_",
        "aten::reshape", "aten::sum.dim",
        "aten::to",
        "aten::exp",
    ]  # fmt: skip


def test_a_key_of_the_users_own_decides_what_a_sum_is(audit):
    mine = kf.asarray([7.0])
    handle = kf.impl("aten::add", audit, lambda a, b: mine)
    try:
        with kf.include_keys(audit):
            assert kf.ones(2) + kf.ones(2) is mine
    finally:
        handle.remove()
    assert (kf.ones(2) + kf.ones(2)).tolist() == [2, 2]


def test_printing_and_reading_call_no_operator(seen):
    t = kf.ones(3)
    seen.clear()
    repr(t), t.tolist(), t.numpy(), float(kf.ones(()))
    assert seen == ["aten::ones"]


def test_numpy_beside_a_tensor_gives_a_tensor():
    t, a = kf.ones(3), np.arange(3.0)
    for result in [t + a, a + t, a - t, a @ t, a < t, a == t, np.float64(2) * t, t / np.int64(2)]:
        assert isinstance(result, kf.Tensor)
    assert (a - t).tolist() == [-1, 0, 1]
    assert (a < t).tolist() == [True, False, False]


def test_numpy_scalars_have_a_dtype_and_python_numbers_are_weak():
    t = kf.ones(2, dtype="float32")
    assert (t * 2.5).dtype == "float32"
    assert (t * np.float64(2.5)).dtype == "float64"
    assert (kf.arange(2) + 1.5).dtype == "float64"
    assert (kf.arange(2) + True).dtype == "int64"


def test_what_isnt_a_number_gets_its_own_chance():
    class Other:
        def __radd__(self, other):
            return "mine"

    assert kf.ones(2) + Other() == "mine"
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+"):
        kf.ones(2) + "x"
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for @"):
        kf.ones(2) @ 2


def test_in_place_operators_write_into_the_memory():
    a = np.ones(3)
    t = kf.from_numpy(a)
    same = t
    t += 1
    t *= [2, 3, 4] @ np.eye(3)
    t -= kf.ones(3)
    t /= 2
    assert t is same
    assert a.tolist() == [1.5, 2.5, 3.5]


def test_in_place_on_an_overlapping_view():
    a = np.arange(5.0)
    t = kf.from_numpy(a)
    t[1:] += t[:-1]
    assert a.tolist() == [0, 1, 3, 5, 7]


def test_in_place_operators_say_what_doesnt_fit():
    whole = kf.arange(3)
    with pytest.raises(kf.DTypeError, match=saying("aten::copy_", "float64", "int64")):
        whole += 0.5
    with pytest.raises(kf.ShapeError, match="aten::copy_"):
        whole += kf.zeros((2, 3), dtype="int64")
    with pytest.raises(kf.BindingError, match=saying("+=", "str")):
        whole += "x"
    fixed = np.ones(3)
    fixed.flags.writeable = False
    fixed = kf.from_numpy(fixed)
    with pytest.raises(kf.ReadOnlyError, match="read-only"):
        fixed += 1
    assert whole.tolist() == [0, 1, 2]


def test_masks_combine():
    t = kf.arange(6)
    assert t[(t > 1) & (t < 4)].tolist() == [2, 3]
    assert t[(t < 1) | (t == 5)].tolist() == [0, 5]
    assert t[~(t < 4)].tolist() == [4, 5]
    assert ((t > 1) ^ (t < 4)).tolist() == [True, True, False, False, True, True]
    assert (True & (t > 4)).tolist() == [False] * 5 + [True]


# ---- methods -------------------------------------------------------------------------------------


def test_shape_methods_are_views():
    a = np.arange(24.0).reshape(2, 3, 4)
    t = kf.from_numpy(a)
    views = [
        (t.reshape(6, 4), a.reshape(6, 4)),
        (t.reshape((4, -1)), a.reshape(4, -1)),
        (t.transpose(0, 2), a.swapaxes(0, 2)),
        (t.permute(2, 0, 1), a.transpose(2, 0, 1)),
        (t.permute((1, 0, 2)), a.transpose(1, 0, 2)),
        (t.mT, a.mT),
        (t[0].T, a[0].T),
        (t.unsqueeze(1), a[:, None]),
        (t.unsqueeze(-1).squeeze(-1), a),
        (t[None].squeeze(), a),
        (t[:, :1].expand(2, 3, 4), np.broadcast_to(a[:, :1], (2, 3, 4))),
        (t.broadcast_to((5, 2, 3, 4)), np.broadcast_to(a, (5, 2, 3, 4))),
        (t.flip(), np.flip(a)),
        (t.flip(axis=-1), np.flip(a, -1)),
        (t.flip((0, 2)), np.flip(a, (0, 2))),
    ]
    for view, expected in views:
        assert np.array_equal(view.numpy(), expected)
        assert np.shares_memory(view.numpy(), a)


def test_transposition_asks_for_matrices():
    with pytest.raises(kf.ShapeError, match=saying(".T", "3", ".mT")):
        kf.zeros((1, 2, 3)).T
    with pytest.raises(kf.ShapeError, match=saying(".mT", "1")):
        kf.zeros(3).mT


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (2, 0), [1]])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "all", "any"])
def test_reductions_are_numpys(name, axis, keepdims):
    a = np.random.default_rng(0).integers(0, 3, (2, 3, 4))
    result = getattr(kf.from_numpy(a), name)(axis, keepdims=keepdims)
    given_axis = tuple(axis) if isinstance(axis, list) else axis
    expected = getattr(a, name)(axis=given_axis, keepdims=keepdims)
    assert np.allclose(result.numpy(), expected)
    assert result.shape == np.shape(expected)


def test_sums_take_a_dtype():
    assert kf.ones(3).sum(dtype="float32").dtype == "float32"
    assert kf.ones(3).sum(axis=0, dtype="int64").dtype == "int64"
    assert kf.ones(3).mean(dtype="float32").dtype == "float32"


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_argmax_and_argmin_are_numpys(axis):
    a = np.random.default_rng(0).random((3, 4))
    t = kf.from_numpy(a)
    assert np.array_equal(t.argmax(axis).numpy(), a.argmax(axis))
    assert np.array_equal(t.argmin(axis).numpy(), a.argmin(axis))


def test_elementwise_methods():
    a = np.array([-1.5, 0.0, 2.0])
    t = kf.from_numpy(a)
    assert np.array_equal(t.abs().numpy(), np.abs(a))
    assert np.array_equal(abs(t).numpy(), np.abs(a))
    assert np.array_equal(t.relu().numpy(), np.maximum(a, 0))
    assert np.allclose(t.exp().numpy(), np.exp(a))
    assert np.allclose(t.abs().sqrt().numpy(), np.sqrt(np.abs(a)))
    assert np.allclose(t.exp().log().numpy(), a)
    assert np.allclose(t.softmax().numpy(), np.exp(a) / np.exp(a).sum())
    assert (+t).tolist() == t.tolist()


def test_to_takes_dtypes_and_devices():
    t = kf.ones((2, 3))
    assert t.to("float64") is t
    assert t.to(kf.int64).dtype == "int64"
    assert t.to("cpu") is t
    assert t.to("cpu", copy=True).data_ptr() != t.data_ptr()
    meta = t.to("meta", dtype="float32")
    assert (meta.shape, meta.dtype, meta.device) == ((2, 3), "float32", "meta")
    assert t.to_device("meta").device == "meta"


def test_to_says_what_cant_be(npu):
    t = kf.ones(2)
    with pytest.raises(kf.InvalidValue, match=saying("'nowhere'", "dtype", "device")):
        t.to("nowhere")
    with pytest.raises(kf.BindingError, match="twice"):
        t.to("float32", dtype="float32")
    with pytest.raises(kf.DeviceError, match=saying("npu:0", "cpu, meta")):
        t.to("npu")
    with pytest.raises(kf.DeviceError, match=saying("meta", "no data", "cpu")):
        kf.empty(2, device="meta").to("cpu")
    with pytest.raises(kf.NotSupported, match=saying("streams", "7")):
        t.to_device("cpu", stream=7)


def test_contiguous_and_clone():
    t = kf.from_numpy(np.arange(6.0).reshape(2, 3))
    assert t.contiguous().data_ptr() == t.data_ptr()
    assert t.T.contiguous().is_contiguous()
    assert t.clone().data_ptr() != t.data_ptr()
    assert t.clone().tolist() == t.tolist()


def test_copy_and_fill_write():
    t = kf.zeros((2, 3))
    assert t.copy_(kf.arange(3)) is t
    assert t.tolist() == [[0, 1, 2]] * 2
    t[0].fill_(7)
    assert t.tolist() == [[7, 7, 7], [0, 1, 2]]


def test_meta_tensors_have_shapes_and_no_data():
    t = kf.empty((2, 3), device="meta")
    assert (t + 1).sum(axis=0).shape == (3,)
    assert (t @ t.T).device == "meta"
    for read in [float, bool, kf.Tensor.tolist, kf.Tensor.numpy]:
        with pytest.raises(kf.Error, match="meta"):
            read(t[:1, :1])


def test_reference_counts_balance():
    t, a = kf.ones((4, 4)), np.ones((4, 4))

    def work():
        t + a, t[1:, None], t[t > 0], t.sum(0), t == a, t.numpy(), np.asarray(t)
        for bad in [lambda: t["x"], lambda: t + "x", lambda: t[9], lambda: t @ 2]:
            with pytest.raises((TypeError, IndexError)):
                bad()

    work()
    gc.collect()
    before = sys.getrefcount(t), sys.getrefcount(a), sys.getrefcount(kf.float64)
    for _ in range(50):
        work()
    gc.collect()
    assert (sys.getrefcount(t), sys.getrefcount(a), sys.getrefcount(kf.float64)) == before
