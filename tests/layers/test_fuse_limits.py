"""`kf.fuse` where a recording would be wrong: the function runs as it is, or is recorded again."""

import collections
import gc
import threading
import weakref

import numpy as np
import pytest

import keyfold as kf

pytestmark = pytest.mark.usefixtures("no_garbage")


def three():
    return kf.asarray([1.0, 2.0, 3.0])


def test_elements_of_other_tensors_are_no_constants():
    weight, flag = three(), kf.asarray([True])
    scaled = kf.fuse(lambda x: x * float(weight[0]))
    chosen = kf.fuse(lambda x: x * 2.0 if flag else x * 3.0)
    mixed = kf.fuse(lambda x: x * np.asarray(weight).sum())
    assert [scaled(three()).tolist()[0], chosen(three()).tolist()[0]] == [1.0, 2.0]
    assert mixed(three()).tolist()[0] == 6.0
    weight[:] = 10.0
    flag[:] = False
    assert [scaled(three()).tolist()[0], chosen(three()).tolist()[0]] == [10.0, 3.0]
    assert mixed(three()).tolist()[0] == 30.0


def test_gradients_asked_for_later_are_there():
    weight = three().requires_grad_()
    fused = kf.fuse(lambda x: x * weight + 1.0)
    with kf.no_grad():
        assert not fused(three()).requires_grad
    assert fused(three()).requires_grad
    other = three()
    late = kf.fuse(lambda x: x * other + 1.0)
    late(three())
    other.requires_grad_()
    assert late(three()).requires_grad


def test_a_written_argument_that_is_a_constant_too():
    weight = kf.ones(3)

    def f(x):
        y = weight * 2.0
        x += 1.0
        return y + weight

    fused = kf.fuse(f)
    assert fused(weight).tolist() == [4.0] * 3
    assert fused(weight).tolist() == [7.0] * 3
    assert fused(kf.zeros(3)).tolist() == [9.0] * 3


def test_views_that_are_read_only_stay_so():
    fused = kf.fuse(lambda x: kf.broadcast_to(x, (2, 3)))
    x = three()
    for _ in range(2):
        with pytest.raises(kf.ReadOnlyError):
            fused(x)[0, 0] = 5.0
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_a_tensor_that_is_kept_elsewhere():
    kept = collections.deque()

    def f(x):
        kept.append(kf.tanh(x))
        return kept[-1] * 2.0

    fused = kf.fuse(f)
    for _ in range(2):
        fused(three())
        assert kept[-1].tolist() == kf.tanh(three()).tolist()
    assert fused.explain().endswith("not recorded: it changes a deque")


def test_another_thread_s_seed_is_its_own_affair():
    go, done, errors = threading.Event(), threading.Event(), []

    def other():
        go.wait()
        try:
            kf.manual_seed(5)
        except kf.Error as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def f(x):
        y = x + kf.rand(3, dtype="float64")
        go.set()
        done.wait(30)
        return y

    fused = kf.fuse(f)
    fused(three())
    thread.join()
    assert errors == []
    assert fused.stats()["replayed"] == 1


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_classes_of_numpy_s_with_operators_of_their_own():
    matrix = np.asmatrix([[1.0, 2.0], [3.0, 4.0]])
    squared = kf.fuse(lambda m: m * m)(matrix)
    assert type(squared) is np.matrix
    assert squared.tolist() == [[7.0, 10.0], [15.0, 22.0]]
    masked = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    assert kf.fuse(lambda m: m + 1.0)(masked).tolist() == [None, 3.0]


def test_arrays_of_dtypes_that_keyfold_lacks_are_passed_through():
    fused = kf.fuse(lambda x, texts: x * float(len(texts)))
    assert fused(three(), np.array(["a", "b"])).tolist() == [2.0, 4.0, 6.0]


def test_an_element_at_fault_in_a_group_names_its_operation():
    fused = kf.fuse(lambda x, n: kf.pow(x * x, n) + 1)
    base = kf.asarray([1, 2])
    assert fused(base, kf.asarray([1, 2])).tolist() == [2, 17]
    with pytest.raises(kf.InvalidValue, match=r"aten::pow.*operation 1 of a fused function"):
        fused(base, kf.asarray([1, -1]))
    assert fused(base, kf.asarray([0, 1])).tolist() == [2, 5]


def test_a_function_that_reaches_itself_is_freed():
    class Large:
        pass

    def make():
        large = Large()

        @kf.fuse
        def f(x):
            return x * 2.0 if large else f

        return f, weakref.ref(large)

    fused, large = make()
    fused(three())
    del fused
    gc.collect()
    assert large() is None


@pytest.mark.parametrize("other", [kf.ones(1).device, b"bytes", "text", 7, 2.5, (1, "a")])
def test_equal_arguments_are_the_same(other):
    fused = kf.fuse(lambda x, other: x * 2.0)
    for _ in range(3):
        again = type(other)(other) if type(other) in (bytes, tuple) else other
        fused(three(), kf.ones(1).device if isinstance(other, kf.Device) else again)
    assert fused.stats()["recorded"] == 1
