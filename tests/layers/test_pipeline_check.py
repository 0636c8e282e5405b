"""`kf.pipeline(check="eager")`: each flush also runs its operations one by one, and compares."""

import inspect
import itertools

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def x():
    return kf.asarray(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), copy=True)


@pytest.fixture
def counting(lib):
    """An operator whose last element is another number in each call."""
    calls = itertools.count()

    def kernel(x):
        y = np.zeros(x.shape)
        y.flat[-1] = next(calls)
        return y

    lib.define("counting(Tensor x) -> Tensor")
    lib.impl("counting", kernel, "CPU")
    lib.impl("counting", lambda x: kf.empty_like(x), "Meta")
    return getattr(kf.ops, lib.ns).counting


def test_the_first_difference_names_the_operation_its_line_and_the_element(x, counting, tmp_path):
    pipe = kf.pipeline(check="eager")
    with pytest.raises(kf.PipelineError) as raised, pipe:  # noqa: PT012 - the block's end raises
        y = x + 1.0
        line = inspect.currentframe().f_lineno + 1
        bad = counting(y)
        after = bad * 2.0
        other = kf.exp(y)
    text = str(raised.value)
    name = counting.name
    assert f"{name}: element [1, 2] is 1.0, and 0.0 when the call runs eagerly" in text
    assert "the pipeline computed it by itself" in text
    assert f"operation 1 of a pipeline, {name}, recorded at " in text
    assert f"test_pipeline_check.py:{line}" in text
    for tensor in (bad, after):
        with pytest.raises(kf.PipelineError) as again:
            tensor.tolist()
        assert str(again.value) == text
    assert other.tolist() == kf.exp(x + 1.0).tolist()
    failure = pipe.last_error()
    assert (failure.index, failure.operator) == (1, name)
    assert failure.line.endswith(f"test_pipeline_check.py:{line}")
    pipe.save_failure(tmp_path / "failure.json")
    graph = kf.Graph.load(tmp_path / "failure.json")
    assert [node.operator for node in graph.nodes] == [name]
    assert pipe.stats()["failed"] == 1
    assert pipe.stats()["skipped"] == 1


def test_reading_a_result_that_differs_raises_it(x, counting):
    with kf.pipeline(check="eager"):
        bad = counting(x)
        with pytest.raises(kf.PipelineError, match=r"element \[1, 2\] is 1\.0, and 0\.0"):
            bad.numpy()


def test_equal_results_are_compared_in_groups_and_alone(x):
    with kf.pipeline(check="eager") as pipe:
        y = kf.tanh(x * x) + 1.0
        z = y.T @ kf.rand(2, 4, dtype="float64")
        y[0] = 5.0
        total = kf.sum(z)
    expected = kf.tanh(x * x) + 1.0
    expected[0] = 5.0
    assert y.tolist() == expected.tolist()
    assert np.isfinite(float(total))
    stats = pipe.stats()
    # All but the two results inside the group.
    assert (stats["groups"], stats["failed"], stats["checked"]) == (1, 0, stats["ran"] - 2)
    with kf.pipeline() as pipe:
        kept = x + 1.0
    assert pipe.stats()["checked"] == 0
    assert kept.shape == (2, 3)


def test_random_numbers_and_gradients_are_those_without_a_check(x):
    def train():
        kf.manual_seed(11)
        w = kf.randn(3, 2, dtype="float64").requires_grad_()
        for _ in range(3):
            loss = kf.sum(kf.dropout(kf.tanh(x @ w), 0.5) ** 2.0)
            loss.backward()
            with kf.no_grad():
                w -= 0.1 * w.grad
            w.grad = None
        return w.tolist(), kf.rand(2).tolist()

    expected = train()
    with kf.pipeline(check="eager") as pipe:
        assert train() == expected
    assert pipe.stats()["checked"] > 10


def test_it_works_over_a_device_that_works_late(x):
    from keyfold.testing import delayed_device

    with delayed_device("late") as device:
        there = x.to(device.name)
        with kf.pipeline(check="eager") as pipe:
            y = kf.exp(there * 0.0) + there
        assert y.cpu().tolist() == (x + 1.0).tolist()
        assert pipe.stats()["checked"] == 1


@pytest.mark.parametrize("check", ["lazy", "", "Eager", True, 1, ("eager",)])
def test_another_check_is_refused(check):
    with pytest.raises(kf.InvalidValue, match=r'check of a pipeline is .*: give "eager"'):
        kf.pipeline(check=check)


def test_a_check_inside_a_pipeline_without_one_is_refused(x):
    with kf.pipeline() as outer:
        y = x + 1.0
        with pytest.raises(kf.PipelineError, match="the one around it, which checks nothing"):
            kf.pipeline(check="eager").__enter__()
        assert y.is_pending
        assert outer.is_open
    assert not (x + 1.0).is_pending
    with kf.pipeline(check="eager") as outer, kf.pipeline(), kf.pipeline(check="eager") as inner:
        z = x + 2.0
        assert inner.is_joined
    assert z.tolist() == (x + 2.0).tolist()
    assert outer.stats()["checked"] == 1
