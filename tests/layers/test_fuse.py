"""`kf.fuse`: a function is recorded once for forms of arguments, and computed without its calls."""

import collections
import threading
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.programs import STEPS, same

pytestmark = pytest.mark.usefixtures("no_garbage")


def numbers(*shape, dtype="float64"):
    rng = np.random.default_rng(5)
    return kf.asarray(rng.standard_normal(shape).astype(dtype), copy=True)


def gelu(x):
    return x * kf.sigmoid(x * 1.702)


def counted(f):
    """The function, with a mock that counts the calls of its Python code, unseen by `fuse`."""
    calls = mock.Mock()

    def wrapped(*args, **kwargs):
        calls()
        return f(*args, **kwargs)

    return wrapped, calls


def test_later_calls_do_not_run_the_function():
    f, calls = counted(gelu)
    fused = kf.fuse(f)
    for size in (3, 3, 3):
        x = numbers(size)
        assert same(fused(x), gelu(x))
    assert calls.call_count == 1
    assert fused.stats() == {"recorded": 1, "replayed": 3, "in_pipeline": 0, "eager": 0}
    assert fused.explain() == "1 recording, 3 replays\n  3 operations in 1 step"


def test_other_forms_and_numbers_are_other_recordings():
    f, calls = counted(lambda x, scale: kf.exp(x) * scale)
    fused = kf.fuse(f)
    x = numbers(2, 3)
    given = [(x, 2.0), (x.T, 2.0), (numbers(4), 2.0), (kf.astype(x, "float32"), 2.0), (x, 3.0)]
    for _ in range(2):
        for array, scale in given:
            assert same(fused(array, scale), kf.exp(array) * scale)
    assert calls.call_count == 5
    # Equal numbers that compute others.
    zeros = [fused(x, 0.0), fused(x, -0.0)]
    assert not np.signbit(zeros[0].numpy()).any()
    assert np.signbit(zeros[1].numpy()).all()


Pair = collections.namedtuple("Pair", "first second")


def test_structures_and_keywords_keep_their_arrangement():
    def f(pairs, *, more):
        both = Pair(pairs[0]["a"] + more, [kf.exp(pairs[0]["a"]), "text"])
        return {"both": both, "input": more}

    f, calls = counted(f)
    fused = kf.fuse(f)
    x, y = numbers(3), numbers(3)
    for _ in range(3):
        result = fused([{"a": x}], more=y)
        assert result["input"] is y
        assert type(result["both"]) is Pair
        assert result["both"].second[1] == "text"
        assert same(result["both"].first, x + y)
    assert calls.call_count == 1


def test_numpy_arrays_give_numpy_arrays():
    fused = kf.fuse(gelu)
    x = np.linspace(-1.0, 1.0, 5)
    for _ in range(2):
        result = fused(x)
        assert type(result) is np.ndarray
        assert same(result, gelu(x))
    assert fused.stats()["replayed"] == 2


def test_a_write_to_an_argument_is_one():
    def f(x, y):
        x += y
        return x * 2.0

    fused = kf.fuse(f)
    x, y = numbers(3), numbers(3)
    expected = x + y + y
    fused(x, y)
    result = fused(x, y)
    assert same(x, expected)
    assert same(result, expected * 2.0)
    assert fused.stats()["replayed"] == 2
    # Both arguments are one array: the write changes what is read, which is another recording.
    for _ in range(2):
        z = kf.asarray([1.0, 2.0, 3.0])
        assert fused(z, z).tolist() == [4.0, 8.0, 12.0]
        assert z.tolist() == [2.0, 4.0, 6.0]
    assert fused.stats()["recorded"] == 2
    # Of two arrays over one memory no recording knows.
    z = kf.asarray([1.0, 2.0, 3.0])
    assert fused(z, z[:]).tolist() == [4.0, 8.0, 12.0]
    assert fused.stats()["eager"] == 1


WEIGHT = kf.asarray([2.0, 3.0])


def test_what_the_function_reads_besides_is_watched():
    global WEIGHT
    factor = 2.0

    def f(x):
        return x * WEIGHT * factor

    fused = kf.fuse(f)
    x = kf.asarray([1.0, 1.0])
    assert fused(x).tolist() == [4.0, 6.0]
    WEIGHT[0] = 5.0
    assert fused(x).tolist() == [10.0, 6.0]
    assert fused.stats()["recorded"] == 1
    WEIGHT = kf.asarray([1.0, 1.0])
    assert fused(x).tolist() == [2.0, 2.0]
    factor = 3.0
    assert fused(x).tolist() == [3.0, 3.0]
    assert fused(x).tolist() == [3.0, 3.0]
    assert fused.stats() == {"recorded": 3, "replayed": 5, "in_pipeline": 0, "eager": 0}


class Layer:
    def __init__(self):
        self.weight = kf.asarray([2.0, 3.0])

    @kf.fuse
    def __call__(self, x):
        return kf.tanh(x) * self.weight


def test_methods_and_their_tensors():
    one, other = Layer(), Layer()
    x = kf.asarray([1.0, 1.0])
    assert same(one(x), kf.tanh(x) * one.weight)
    other.weight = kf.asarray([7.0, 7.0])
    assert same(other(x), kf.tanh(x) * other.weight)
    one.weight = kf.asarray([0.5, 0.5])
    assert same(one(x), kf.tanh(x) * one.weight)


def test_a_closed_over_array_of_numpy_is_read_at_each_call():
    scale = np.array([2.0, 2.0])
    fused = kf.fuse(lambda x: x * scale)
    x = kf.asarray([1.0, 2.0])
    assert fused(x).tolist() == [2.0, 4.0]
    scale[:] = 3.0
    assert fused(x).tolist() == [3.0, 6.0]
    scale = np.array([1.0, 1.0])
    assert fused(x).tolist() == [1.0, 2.0]
    assert fused.stats()["eager"] == 0


def test_a_kernel_registered_anew_is_called():
    fused = kf.fuse(lambda x: kf.log1p(x * 2.0) + 1.0)
    x = kf.asarray([1.0, 2.0])
    before = fused(x).tolist()
    handle = kf.impl("aten::log1p", "CPU", lambda x: kf.ones_like(x) * 40.0, override="shadow")
    assert fused(x).tolist() == [41.0, 41.0]
    assert fused(x).tolist() == [41.0, 41.0]
    handle.remove()
    assert fused(x).tolist() == before
    assert fused.stats()["recorded"] == 3


def test_control_flow_that_depends_on_elements_runs_as_it_is():
    fused = kf.fuse(lambda x: x + 1.0 if float(kf.sum(x)) > 0.0 else x - 1.0)
    assert fused(kf.asarray([1.0])).tolist() == [2.0]
    assert fused(kf.asarray([-1.0])).tolist() == [-2.0]
    assert fused.stats() == {"recorded": 0, "replayed": 0, "in_pipeline": 0, "eager": 2}
    assert fused.explain().splitlines()[1] == (
        "not recorded: it reads elements, or asks for a computation, while it is recorded"
    )


def copied(x, numbers):
    target = kf.asarray(numbers)
    target[...] = x
    return target


def test_objects_that_are_no_arrays_are_made_by_each_call():
    fused = kf.fuse(lambda x: (x + 1.0, (item for item in "ab")))
    x = kf.asarray([1.0])
    assert [list(fused(x)[1]) for _ in range(2)] == [["a", "b"]] * 2
    assert fused.explain().splitlines()[1] == "not recorded: a result is a generator"


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (lambda x: x[x > 0.0], "its result's shape can't be inferred"),
        (lambda x: np.asarray(x) + 1.0, "it reads elements"),
        (lambda x: (str(x), x)[1] * 2.0, "it reads elements"),
        (lambda x: copied(x, [1.0, 2.0]), "it writes to memory that isn't pending"),
        (lambda x: kf.flush() or x * 2.0, None),
    ],
)
def test_what_is_not_recorded_says_why(f, reason):
    fused = kf.fuse(f)
    x = kf.asarray([1.0, -2.0])
    for _ in range(2):
        assert same(fused(x), f(x))
    if reason is None:
        assert fused.stats()["replayed"] == 2
    else:
        assert fused.stats()["replayed"] == 0
        assert reason in fused.explain()


def test_errors_are_the_function_s_own_and_name_the_line():
    index = kf.asarray([0])
    fused = kf.fuse(lambda x, at: kf.ops.aten.index_select(x, 0, at) * 2.0)
    x = numbers(3)
    fused(x, index)
    with pytest.raises(kf.IndexOutOfRange) as caught:
        fused(x, kf.asarray([7]))
    assert "operation 0 of a fused function, aten::index_select, recorded at" in str(caught.value)
    assert __file__ in str(caught.value)
    with pytest.raises(kf.ShapeError):
        kf.fuse(lambda x: x + kf.ones(5))(x)


def test_random_numbers_are_drawn_at_each_call():
    f = lambda x: kf.dropout(x, 0.5) + kf.rand(50, dtype="float64")  # noqa: E731
    fused = kf.fuse(f)
    x = kf.ones(50, dtype="float64")
    kf.manual_seed(3)
    expected = [f(x) for _ in range(3)]
    kf.manual_seed(3)
    assert all(same(fused(x), one) for one in expected)
    assert fused.stats()["replayed"] == 3


def test_derivatives_batches_traces_and_other_layers():
    fused = kf.fuse(gelu)
    x = numbers(4)
    value, gradient = kf.value_and_grad(lambda x: kf.sum(fused(x)))(x)
    expected = kf.value_and_grad(lambda x: kf.sum(gelu(x)))(x)
    assert same(value, expected[0])
    assert same(gradient, expected[1])
    rows = numbers(3, 4)
    assert same(kf.vmap(fused)(rows), gelu(rows))
    assert [n.operator for n in kf.trace(fused, x).nodes] == [
        n.operator for n in kf.trace(gelu, x).nodes
    ]
    with kf.profile() as profile:
        fused(x)
    assert "aten::sigmoid" in [event["name"] for event in profile.events]
    with kf.autocast("bfloat16"):
        assert fused(rows).dtype == gelu(rows).dtype
    needs = numbers(3)
    needs.requires_grad_()
    fused(needs).sum().backward()
    again = numbers(3)
    again.requires_grad_()
    gelu(again).sum().backward()
    assert same(needs.grad, again.grad)
    with kf.pipeline() as pipe:
        y = fused(x)
        assert y.is_pending
        assert pipe.pending_count() == 3
    assert same(y, gelu(x))


def test_a_closed_over_parameter_keeps_its_gradient():
    weight = numbers(3)
    weight.requires_grad_()
    fused = kf.fuse(lambda x: kf.sum(kf.tanh(x) * weight))
    x = numbers(3)
    for _ in range(2):
        weight.grad = None
        fused(x).backward()
        assert same(weight.grad, kf.tanh(x))
    assert "a result requires gradients" in fused.explain()
    with kf.no_grad():
        assert same(fused(x), kf.sum(kf.tanh(x) * weight.detach()))


def test_the_latest_recordings_are_kept():
    fused = kf.fuse(gelu, recordings=2)
    for size in (1, 2, 3):
        fused(numbers(size))
    assert fused.explain().startswith("2 recordings, 3 replays")
    fused(numbers(1))
    assert fused.stats()["recorded"] == 4
    fused.clear()
    assert fused.explain() == "0 recordings, 4 replays"
    with pytest.raises(kf.InvalidValue, match="recordings is 0"):
        kf.fuse(gelu, recordings=0)


def test_threads_share_recordings():
    fused = kf.fuse(lambda x: kf.softmax(gelu(x) @ x, axis=-1))
    arrays = [numbers(at % 4 + 1, at % 4 + 1) + float(at) for at in range(32)]
    expected = [kf.softmax(gelu(x) @ x, axis=-1) for x in arrays]
    wrong = []

    def work(first):
        for at in range(first, first + 200):
            if not same(fused(arrays[at % 32]), expected[at % 32]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fused.stats()["eager"] == 0


def test_the_newest_recording_stays_whatever_the_structure_of_its_arguments():
    fused = kf.fuse(gelu, recordings=1)
    x = numbers(3)
    fused(x=x)
    for _ in range(3):
        fused(x)
    assert fused.stats()["recorded"] == 2
    fused(x=x)
    assert fused.stats()["recorded"] == 3
    assert fused.explain().startswith("1 recording, 5 replays")


def test_results_do_not_share_memory_with_later_ones():
    fused = kf.fuse(lambda x: (x * 2.0, x.T, x))
    x = numbers(2, 3)
    first, second = fused(x), fused(x)
    first[0][...] = 0.0
    assert same(second[0], x * 2.0)
    assert same(second[1], x.T)
    assert second[2] is x
    second[1][0, 0] = 9.0
    assert float(x[0, 0]) == 9.0


pure = st.lists(
    st.tuples(
        st.sampled_from(sorted(set(STEPS) - {"positive ones", "forget", "assign a tensor"})),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(pure)
def test_random_programs_have_the_same_bits(steps):
    def program(*tensors):
        tensors = list(tensors)
        for name, a, b in steps:
            try:
                tensors.extend(STEPS[name](tensors, a, b))
            except kf.Error:
                continue
        return tensors

    def inputs():
        return [numbers(3), numbers(2, 3), numbers(3, 2), numbers(2, 2)]

    fused = kf.fuse(program)
    kf.manual_seed(7)
    expected = [program(*inputs()) for _ in range(2)]
    kf.manual_seed(7)
    for one in expected:
        found = fused(*inputs())
        assert len(found) == len(one)
        for at, (a, b) in enumerate(zip(one, found, strict=True)):
            assert same(a, b), at
    assert fused.stats()["replayed"] == 2, fused.explain()


def network(params, x, y):
    w1, b1, w2, b2 = params
    hidden = gelu(x @ w1 + b1)
    return kf.mean(kf.square(hidden @ w2 + b2 - y))


def losses(step, count=20):
    """The losses of steps of gradient descent."""
    params = [numbers(3, 8), numbers(8), numbers(8, 1), numbers(1)]
    x, y = numbers(16, 3), numbers(16, 1)
    found = []
    for _ in range(count):
        value, gradients = step(params, x, y)
        params = [p - 0.05 * g for p, g in zip(params, gradients, strict=True)]
        found.append(float(value))
    return found


def test_training_steps_have_the_same_losses_eagerly_in_a_pipeline_and_recorded():
    step = kf.value_and_grad(network)
    fused = kf.fuse(step)

    def in_pipeline(*args):
        with kf.pipeline():
            return step(*args)

    expected = losses(step)
    assert expected[-1] < expected[0] / 2
    assert losses(in_pipeline) == expected
    assert losses(fused) == expected
    assert fused.stats() == {"recorded": 1, "replayed": 20, "in_pipeline": 0, "eager": 0}
