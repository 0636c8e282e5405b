"""Derivatives of expressions beside those of the same functions, one operator after the other.

What isn't equal, by intent: where a branch isn't taken an expression's derivative is 0, also if the
derivative inside that branch is infinite or NaN (`where(x > 0, sqrt(x), 0.0)` at 0), for which
operators one by one multiply 0 with it and give NaN, as PyTorch's do.
"""

import itertools
import math

import numpy as np
import pytest

import keyfold as kf

INF, NAN = math.inf, math.nan
POINTS = np.array([-INF, -3.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, INF, NAN])
EXPRESSION_RELU = kf.Expression("relu(x)")

# As text, and by operators.
FUNCTIONS = {
    "relu({})": kf.relu,
    # Not kf.clip, whose gradient at a limit is whole.
    "clamp({}, 0, 1)": lambda x: kf.minimum(kf.maximum(x, 0), 1),
    "max({}, 0.5)": lambda x: kf.maximum(x, 0.5),
    "min({}, 0.5)": lambda x: kf.minimum(x, 0.5),
    "where(({0}) > 0, {0}, 0.0)": lambda x: kf.where(x > 0, x, 0.0),
    "where(({0}) > 0, 1.0, {0})": lambda x: kf.where(x > 0, 1.0, x),
    "where(({0}) > 0, {0}, 0.25 * ({0}))": lambda x: kf.where(x > 0, x, 0.25 * x),
    "abs({})": kf.abs,
    "sqrt({})": kf.sqrt,
    "log({})": kf.log,
    "log1p({})": kf.log1p,
    "exp({})": kf.exp,
    "expm1({})": kf.expm1,
    "tanh({})": kf.tanh,
    "sigmoid({})": kf.sigmoid,
    "sin({})": kf.sin,
    "-({})": lambda x: -x,
    "({}) + 1.0": lambda x: x + 1.0,
    "({}) * 2.0": lambda x: x * 2.0,
    "1.0 / ({})": lambda x: 1.0 / x,
    "({}) ** 3": lambda x: x**3,
    "({}) ** 0.5": lambda x: x**0.5,
    "({}) ** -1.5": lambda x: x**-1.5,
}
# Derivatives of logarithms and quotients of exponentials are written so that infinities cancel.
CANCELLING = {"log({})", "log1p({})", "1.0 / ({})", "({}) + 1.0"}


def slope(function, x, cotangent=1.0):
    """The derivative of one function, times a number, by Autograd."""
    with np.errstate(all="ignore"):
        got = kf.grad(lambda x: kf.sum(function(x) * cotangent))(kf.asarray(x))
    return np.asarray(got)


def same(got, expected):
    return np.isclose(got, expected, rtol=1e-10, atol=0, equal_nan=True)


def chain(names):
    text = "x"
    for name in names:
        text = name.format(text)

    def unfused(x):
        for name in names:
            x = FUNCTIONS[name](x)
        return x

    return text, unfused


def composed(names, x):
    """The product of the derivatives, 0 where a branch isn't taken, and where that is."""
    product, skipped = np.ones_like(x), np.zeros(x.shape, bool)
    for name in names:
        # A rule that selects 0 gives it for an infinite gradient, too.
        skipped |= slope(FUNCTIONS[name], x, INF) == 0
        with np.errstate(all="ignore"):
            product = product * slope(FUNCTIONS[name], x)
        x = np.asarray(FUNCTIONS[name](kf.asarray(x)))
    return np.where(skipped, 0.0, product), skipped


ISSUE = ["sqrt(relu(x))", "log(clamp(x, 0, 1))", "sqrt(where(x > 0, x, 0.0))", "1 / relu(x)"]


@pytest.mark.parametrize("text", ISSUE)
def test_a_branch_not_taken_has_the_derivative_0_whatever_is_outside(text):
    first = kf.Expression(text).derivative("x")
    below = np.array([-INF, -3.0, -1e-300])
    for derivative in (first, first.derivative("x"), first.derivative("x").derivative("x")):
        assert derivative(below).tolist() == [0.0, 0.0, 0.0], derivative
    x = kf.asarray(below)
    assert slope(kf.Expression(text), x).tolist() == [0.0, 0.0, 0.0]


def test_derivatives_of_branches_print_simply():
    table = {
        "relu(x)": "where(x <= 0, 0.0, 1.0)",
        "sqrt(relu(x))": "t0 = x <= 0; where(t0, 0.0, 0.5 / sqrt(where(t0, 0, x)))",
        "1 / relu(x)": "t0 = x <= 0; t1 = where(t0, 0, x); where(t0, 0.0, -(1 / t1 / t1))",
        "where(x > 0, sqrt(x), 0.0)": "where(x > 0, 0.5 / sqrt(x), 0.0)",
        "where(x > 0, 1.0, exp(x))": "where(x > 0, 0.0, exp(x))",
        "softplus(x)": "where(x > 40, 1.0, sigmoid(x))",
        "log1p(exp(x))": "sigmoid(x)",
        "max(x, 0)": "where(x < 0, 0.0, where(x == 0, 0.5, 1.0))",
    }
    for text, printed in table.items():
        assert str(kf.Expression(text).derivative("x")) == printed


def random_chains(count):
    rng = np.random.default_rng(5)
    names = list(FUNCTIONS)
    while count:
        chosen = [names[i] for i in rng.integers(0, len(names), rng.integers(2, 5))]
        pairs = itertools.pairwise(chosen)
        if not any(inner == "exp({})" and outer in CANCELLING for inner, outer in pairs):
            count -= 1
            yield chosen


def test_random_chains_have_the_composition_of_the_functions_derivatives():
    branches = 0
    for names in random_chains(150):
        text, unfused = chain(names)
        fused = kf.Expression(text)
        got = fused.derivative("x")(POINTS)
        expected, skipped = composed(names, POINTS)
        assert same(got, expected).all(), (text, POINTS, got, expected)
        assert same(slope(fused, POINTS), got).all(), text
        one_by_one = slope(unfused, POINTS)
        assert (same(got, one_by_one) | (skipped & np.isnan(one_by_one))).all(), (text, one_by_one)
        branches += (skipped & ~np.isnan(one_by_one)).sum()
    assert branches > 100


def test_second_derivatives_of_chains_are_those_of_the_operators():
    for names in random_chains(60):
        text, unfused = chain(names)
        fused = kf.Expression(text).derivative("x").derivative("x")(POINTS)

        def twice(function, x):
            return kf.grad(lambda x: kf.sum(kf.grad(lambda x: kf.sum(function(x)))(x)))(x)

        x = kf.asarray(POINTS)
        one_by_one = np.asarray(twice(unfused, x))
        by_layers = np.asarray(twice(kf.Expression(text), x))
        known = ~np.isnan(one_by_one)
        assert np.isclose(fused, one_by_one, rtol=1e-9, atol=1e-12)[known].all(), (text, fused)
        assert np.isclose(by_layers, one_by_one, rtol=1e-9, atol=1e-12)[known].all(), text


TWO = {
    "({0}) + ({1})": lambda a, b: a + b,
    "({0}) - ({1})": lambda a, b: a - b,
    "({0}) * ({1})": lambda a, b: a * b,
    "({0}) / ({1})": lambda a, b: a / b,
    "max({0}, {1})": kf.maximum,
    "min({0}, {1})": kf.minimum,
    "where(({0}) > ({1}), {0}, {1})": lambda a, b: kf.where(a > b, a, b),
    "where(({0}) > ({1}), {1}, 0.0)": lambda a, b: kf.where(a > b, b, 0.0),
}


def test_random_formulas_have_the_gradients_of_the_operators_wherever_those_are_numbers():
    rng = np.random.default_rng(6)
    one, two = list(FUNCTIONS), list(TWO)
    one = [name for name in one if name != "exp({})"]
    grid = np.array(np.meshgrid(POINTS, POINTS)).reshape(2, -1)
    compared = 0
    for _ in range(60):
        steps = [(one, two)[rng.integers(2)] for _ in range(4)]
        steps = [(names[rng.integers(len(names))], rng.integers(0, 99, 2)) for names in steps]
        texts = ["x", "y"]
        for name, (i, j) in steps:
            texts.append(name.format(texts[i % len(texts)], texts[j % len(texts)]))
        fused = kf.Expression(texts[-1], inputs=["x", "y"])

        def unfused(x, y, steps=steps):
            values = [x, y]
            for name, (i, j) in steps:
                operands = values[i % len(values)], values[j % len(values)]
                one_operand = FUNCTIONS.get(name)
                values.append(one_operand(operands[0]) if one_operand else TWO[name](*operands))
            return values[-1]

        args = [kf.asarray(v) for v in grid]
        for number, name in enumerate("xy"):
            got = fused.derivative(name)(*grid)
            with np.errstate(all="ignore"):
                grad = kf.grad(lambda *args, f=unfused: kf.sum(f(*args)), argnums=number)(*args)
            expected = np.asarray(grad)
            known = ~np.isnan(expected)
            wrong = known & ~np.isclose(got, expected, rtol=1e-9, atol=0)
            assert not wrong.any(), (texts[-1], name, grid[:, wrong], got[wrong], expected[wrong])
            compared += known.sum()
    assert compared > 5000


def test_an_infinite_gradient_meets_no_branch_that_was_not_taken():
    """From outside an expression, as from inside; under vmap, too."""
    x = kf.asarray(np.array([-1.0, 0.0, 4.0]))
    for relu in (kf.relu, EXPRESSION_RELU):
        root = lambda x, relu=relu: kf.sum(kf.sqrt(relu(x)))  # noqa: E731
        assert kf.grad(root)(x).tolist() == [0.0, 0.0, 0.25]
        assert kf.vmap(kf.grad(root))(x).tolist() == [0.0, 0.0, 0.25]
        second = kf.grad(lambda x, root=root: kf.sum(kf.grad(root)(x)))(x)
        assert second.tolist() == [0.0, 0.0, -1 / 32]


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_reductions_select_the_elements_that_have_a_part_in_the_result(name):
    sign = 1.0 if "max" in name else -1.0
    x = kf.asarray(np.array([[-4.0, 0.0, -1.0], [-9.0, -1.0, 0.0]]) * sign + 0.0)

    def total(x):
        extreme = getattr(kf.ops.aten, name)
        return kf.sum(kf.sqrt(extreme(x, [1]) if name.startswith("a") else extreme(x)))

    got = np.asarray(kf.grad(total)(x))
    ties = 1.0 if name.startswith("a") else 2.0
    assert got.tolist() == [[0.0, INF / ties, 0.0], [0.0, 0.0, INF / ties]]
    # NaN is everywhere, as the result is.
    spoilt = np.array([[1.0, NAN, 2.0]])
    assert np.isnan(np.asarray(kf.grad(total)(kf.asarray(spoilt)))).all()
