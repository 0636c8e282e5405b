"""Random numbers inside vmap: `randomness` says whether examples share them."""

import numpy as np
import pytest

import keyfold as kf

DRAWS = {
    "rand": lambda x: kf.rand(4),
    "randn": lambda x: kf.randn((2, 3), dtype="float32"),
    "operator": lambda x: kf.ops.aten.rand([3]),
    "dropout of an example": lambda x: kf.dropout(x + 1.0, 0.5),
    "dropout of a constant": lambda x: kf.dropout(kf.ones(64), 0.5),
}


@pytest.fixture(autouse=True)
def seed():
    kf.manual_seed(5)


def batch(size=3):
    return kf.zeros((size, 64))


def alike(result):
    rows = np.asarray(result)
    return all(np.array_equal(rows[0], row) for row in rows[1:])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_without_a_choice_it_is_an_error(draw, raises_saying):
    with raises_saying(
        kf.InvalidValue, "aten::ra", "vmap", 'randomness="different"', 'randomness="same"'
    ):
        kf.vmap(draw)(batch())


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_different_and_same(draw):
    different = kf.vmap(draw, randomness="different")(batch())
    rows = np.asarray(different)
    assert not any(np.array_equal(rows[0], row) for row in rows[1:])
    assert alike(kf.vmap(draw, randomness="same")(batch()))


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_repeats_it(draw, randomness):
    f = kf.vmap(draw, randomness=randomness)
    kf.manual_seed(11)
    first = np.asarray(f(batch()))
    kf.manual_seed(11)
    assert np.array_equal(np.asarray(f(batch())), first)


def test_numbers_of_the_batch_are_those_of_one_draw():
    inside = kf.vmap(lambda x: kf.rand((2, 3)), randomness="different")(batch(4))
    kf.manual_seed(5)
    assert np.array_equal(np.asarray(inside), kf.rand((4, 2, 3)).numpy())
    kf.manual_seed(5)
    inside = kf.vmap(lambda x: kf.rand(2), randomness="same")(batch(4))
    kf.manual_seed(5)
    assert np.array_equal(np.asarray(inside)[0], kf.rand(2).numpy())


def test_what_draws_nothing_needs_no_choice():
    x = batch()
    assert np.array_equal(kf.vmap(lambda x: kf.dropout(x, 0.5, train=False))(x).numpy(), x.numpy())
    assert np.array_equal(kf.vmap(lambda x: kf.dropout(x, 0.0))(x).numpy(), x.numpy())


def test_meta_and_devices():
    made = kf.vmap(lambda x: kf.rand(2, device="meta"), randomness="different")(batch(3))
    assert (made.shape, made.device) == ((3, 2), kf.Device("meta"))


@pytest.mark.parametrize(
    ("outer", "inner"), [(a, b) for a in ("different", "same") for b in ("different", "same")]
)
def test_nested_each_level_chooses(outer, inner):
    f = kf.vmap(lambda x: kf.vmap(lambda y: kf.rand(5), randomness=inner)(x), randomness=outer)
    drawn = np.asarray(f(kf.zeros((3, 2))))
    assert drawn.shape == (3, 2, 5)
    assert np.array_equal(drawn[0], drawn[1]) == (outer == "same")
    assert np.array_equal(drawn[:, 0], drawn[:, 1]) == (inner == "same")


def test_an_outer_error_holds_inside(raises_saying):
    inner = kf.vmap(lambda y: kf.rand(5), randomness="different")
    with raises_saying(kf.InvalidValue, "randomness"):
        kf.vmap(inner)(kf.zeros((3, 2)))


def test_gradients_of_each_example_have_their_own_mask():
    def loss(x):
        return kf.sum(kf.dropout(x, 0.5) * x)

    x = kf.ones((3, 64))
    grads = np.asarray(kf.vmap(kf.grad(loss), randomness="different")(x))
    assert set(np.unique(grads)) == {0.0, 4.0}
    assert not alike(grads)
    assert alike(kf.vmap(kf.grad(loss), randomness="same")(x))


def test_under_grad_of_the_whole():
    x = kf.ones((3, 64)).requires_grad_()
    y = kf.vmap(lambda row: kf.dropout(row, 0.5), randomness="different")(x)
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), y.detach().numpy())


def test_a_checkpoint_draws_the_same_again():
    def f(x):
        return kf.vmap(lambda row: kf.dropout(row, 0.5) * row, randomness="different")(x)

    x = kf.ones((3, 64)).requires_grad_()
    y = kf.checkpoint(f, x)
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), 2 * y.detach().numpy())


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("randomness", ["different", "same"])
def test_a_trace_replays_as_it_ran(draw, randomness):
    f = kf.vmap(draw, randomness=randomness)
    graph = kf.trace(f, batch())
    kf.manual_seed(3)
    replayed = np.asarray(graph(batch()))
    kf.manual_seed(3)
    assert np.array_equal(replayed, np.asarray(f(batch())))


def test_an_operator_that_draws_in_its_kernel(lib, ns, raises_saying):
    lib.define("noise(Tensor x) -> Tensor")
    lib.impl("noise", lambda x: x + kf.rand(x.shape), "CPU")
    noise = getattr(kf.ops, ns).noise
    x = kf.zeros((3, 4))
    assert not alike(kf.vmap(noise, randomness="different")(x))
    assert alike(kf.vmap(noise, randomness="same")(x))
    with raises_saying(kf.InvalidValue, "aten::rand", "randomness"):
        kf.vmap(noise)(x)
    nested = kf.vmap(kf.vmap(noise, randomness="different"), randomness="different")
    drawn = np.asarray(nested(kf.zeros((3, 2, 4)))).reshape(6, 4)
    assert len({tuple(row) for row in drawn}) == 6


def test_a_rule_that_draws_draws_for_its_batch(lib, ns):
    lib.define("ruled(Tensor x) -> Tensor")
    lib.impl("ruled", lambda x: x + kf.rand(x.shape), "CPU")

    def rule(info, in_dims, x):
        assert x.shape[in_dims[0]] == info.batch_size
        return x + kf.rand(x.shape), in_dims[0]

    handle = kf.register_vmap(f"{ns}::ruled", rule)
    try:
        drawn = kf.vmap(getattr(kf.ops, ns).ruled, randomness="different")(kf.zeros((3, 4)))
    finally:
        handle.remove()
    assert drawn.shape == (3, 4)
    assert not alike(drawn)


def test_a_wrong_choice_is_refused(raises_saying):
    with raises_saying(kf.InvalidValue, "randomness", "'error'", "'some'"):
        kf.vmap(lambda x: x, randomness="some")
    decorated = kf.vmap(randomness="same")(lambda x: x + kf.rand(2))
    assert alike(decorated(kf.zeros((3, 2))))
