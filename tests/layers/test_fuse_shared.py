"""Fused functions beside others that hold the same tensors, with gradients and threads."""

import threading

import numpy as np
import pytest

import keyfold as kf


def ones(*shape):
    return kf.ones(shape, dtype="float64")


class Net:
    def __init__(self):
        self.weight = ones(3)

    def out(self, batch):
        return batch * self.weight


def test_a_replaced_attribute_is_read_anew_where_several_recordings_held_the_old_one():
    net = Net()
    fused, other = kf.fuse(net.out), kf.fuse(lambda x: x + net.weight)
    for rows in (2, 1):
        fused(ones(rows, 3))
    other(ones(3))
    net.weight = net.weight * 5.0
    assert fused(ones(1, 3)).tolist() == [[5.0] * 3]
    assert fused(ones(2, 3)).tolist() == [[5.0] * 3] * 2
    assert other(ones(3)).tolist() == [6.0] * 3


def test_a_replaced_attribute_is_read_anew_by_threads_that_recorded_at_once():
    net, x = Net(), ones(3)
    fused, begin = kf.fuse(net.out), threading.Barrier(4)

    def call():
        begin.wait(60)
        fused(x)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for step in range(1, 20):
        net.weight = kf.full((3,), float(step), dtype="float64")
        assert fused(x).tolist() == [step] * 3


def test_one_array_and_a_list_of_it_are_other_arguments():
    first = kf.fuse(lambda rows: kf.sum(rows[0]))
    matrix = kf.asarray([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(3):
        assert float(first([matrix])) == 10
        assert float(first((matrix,))) == 10
        assert float(first(matrix)) == 3
    assert first.stats()["recorded"] == 3
    assert first.stats()["eager"] == 0
    add = kf.fuse(lambda numbers: numbers[1] + numbers[1.0] if len(numbers) > 1 else numbers[1] * 2)
    assert add({1: 3, "x": matrix[0]} | {1.0: 3}) == 6


def test_a_written_argument_gets_the_gradient_of_a_tensor_that_the_function_holds():
    w = ones(3)
    w.requires_grad_()

    @kf.fuse
    def add(t):
        t += w

    for _ in range(3):
        w.grad = None
        t = kf.zeros(3, dtype="float64")
        add(t)
        kf.sum(t * 2.0).backward()
        assert w.grad.tolist() == [2, 2, 2]
    assert "requires gradients" in add.explain()


def test_a_tensor_that_requires_gradients_later_gets_them():
    held, x = [ones(3)], ones(3)
    scale = kf.fuse(lambda a: a * held[0])
    assert not scale(x).requires_grad
    held[0].requires_grad_()
    kf.sum(scale(x)).backward()
    assert held[0].grad.tolist() == [1, 1, 1]
    with kf.no_grad():
        assert not scale(x).requires_grad


def test_a_write_with_gradients_to_what_a_recording_holds_is_recorded():
    state, w = kf.zeros(3, dtype="float64"), ones(3)
    w.requires_grad_()
    read = kf.fuse(lambda a: a + state)
    read(ones(3))
    state += w
    kf.sum(state).backward()
    assert w.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("look", ["flush", "read", "end"])
def test_a_view_of_a_computed_tensor_would_miss_a_write(look):
    w = ones(3)
    w.requires_grad_()
    with kf.pipeline() as pipe:
        t = kf.zeros(3, dtype="float64") * 1.0
        if look == "flush":
            pipe.flush()
        elif look == "read":
            assert t.tolist() == [0, 0, 0]
        if look != "end":
            view = t[:2]
            with pytest.raises(kf.GradientError, match="shares its memory"):
                t += w
    view = t[:2]
    with pytest.raises(kf.GradientError, match="shares its memory"):
        t += w
    assert view.tolist() == [0, 0]
    del view
    t += w
    kf.sum(t).backward()
    assert w.grad.tolist() == [1, 1, 1]


def test_iterators_and_sets_are_given_to_the_function_itself():
    @kf.fuse
    def total(x, items):
        for item in items:
            x = x + item
        return x

    for _ in range(3):
        assert total(ones(1), iter([1.0, 2.0])).tolist() == [4]
    numbers = {1.0}
    assert total(ones(1), numbers).tolist() == [2]
    numbers.add(2.0)
    assert total(ones(1), numbers).tolist() == [4]
    assert "an iterator, or a collection that may change" in total.explain()


def test_the_random_state_is_read_and_set_at_each_call():
    seed = kf.manual_seed

    @kf.fuse
    def drawn(x):
        seed(5)
        return x + kf.randn(3)

    @kf.fuse
    def place(x):
        return x + float(kf.random.get_state().offset)

    assert drawn(kf.zeros(3)).tolist() == drawn(kf.zeros(3)).tolist()
    before = place(kf.zeros(1)).tolist()
    kf.randn(100)
    assert place(kf.zeros(1)).tolist() != before
    assert "random state" in drawn.explain() + place.explain()


def test_a_list_that_another_thread_appends_to_keeps_its_items():
    items = []

    @kf.fuse
    def add(x):
        def append():
            with kf.pipeline() as pipe:
                items.append(kf.ones(3) + 1.0)
                items.append("note")
                pipe.flush()

        writer = threading.Thread(target=append)
        writer.start()
        writer.join(60)
        return x + float(len(items) > 0)

    add(np.zeros(3))
    assert [str(item) for item in items[:2]] == [str(kf.ones(3) + 1.0), "note"]


class Pair(tuple):
    """A tuple with a meaning of its own."""

    def __add__(self, other):
        return self[0] - other


def test_tuples_of_other_classes_stay_what_they_are():
    x, y = ones(3), ones(3) * 2.0
    add = kf.fuse(lambda pair: pair + y)
    swap = kf.fuse(lambda a, b: Pair((b * 1.0, a * 1.0)))
    for _ in range(2):
        assert add(Pair((x, y))).tolist() == [-1] * 3
        assert type(swap(x, y)) is Pair
    assert "a class of its own that is a tuple" in add.explain()
    assert "a class of its own that is a tuple" in swap.explain()
