"""Forward mode: `jvp` of built-in and own operators, nested, inside vmap, with gradients."""

import numpy as np
import pytest

import keyfold as kf


def rand(*shape):
    return np.random.default_rng(sum(shape) + len(shape)).uniform(0.3, 1.7, shape)


def differences(f, x, t, step=1e-6):
    return (f(x + step * t) - f(x - step * t)) / (2 * step)


@pytest.fixture
def define(request):
    """Defines operators of namespace `jvp_test`, and takes them back."""
    handles = []

    def make(schema, kernel, key="CPU"):
        handles.append(kf.define(schema))
        name = schema.split("(")[0]
        handles.append(kf.impl(name, key, kernel))
        namespace, own = name.split("::")
        return getattr(getattr(kf.ops, namespace), own)

    yield make
    for handle in reversed(handles):
        handle.remove()


def mixture(x):
    table = kf.stack([kf.sin(x), x * x, kf.exp(-x)])
    table = kf.concat([table[1:], table[:1] * 2.0], axis=0)
    return kf.sum(kf.ops.aten.softmax(table, -1) @ kf.permute_dims(table, (1, 0)), axis=0)


def test_values_and_tangents_in_kind():
    x, t = rand(4), rand(4) - 1.0
    value, tangent = kf.jvp(mixture, (x,), (t,))
    assert type(value) is type(tangent) is np.ndarray
    assert np.allclose(value, mixture(kf.asarray(x)).numpy())
    assert np.allclose(tangent, differences(lambda x: mixture(kf.asarray(x)).numpy(), x, t))
    value, tangent = kf.jvp(mixture, (kf.asarray(x),), (t,))
    assert type(value) is type(tangent) is kf.Tensor
    assert not value.requires_grad
    assert "Autograd" not in value.keys
    assert not tangent.requires_grad
    assert "Autograd" not in tangent.keys


def test_trees_aux_and_what_stays_as_it_is():
    def f(pair, scale):
        a, b = pair["a"], pair["b"]
        return {"product": a * b * scale, "constant": np.ones(2)}, (a + 1.0, "kept")

    given = {"a": np.array([2.0, 3.0]), "b": np.array([5.0, 7.0])}
    value, tangent, aux = kf.jvp(
        f, (given, 10.0), ({"a": np.array([1.0, 0.0]), "b": None}, None), has_aux=True
    )
    assert value["product"].tolist() == [100.0, 210.0]
    assert tangent["product"].tolist() == [50.0, 0.0]
    assert tangent["constant"].tolist() == [0.0, 0.0]
    assert aux[0].tolist() == [3.0, 4.0]
    assert aux[1] == "kept"


def test_results_without_a_derivative_have_zeros():
    x = kf.asarray([3.0, 1.0])
    _, (order, steps, cut) = kf.jvp(
        lambda x: (kf.argmax(x), kf.floor(x), x.detach() * 2.0), (x,), (kf.ones(2),)
    )
    assert order.item() == 0
    assert steps.tolist() == [0.0, 0.0]
    assert cut.tolist() == [0.0, 0.0]
    with kf.no_grad():
        assert kf.jvp(kf.square, (x,), (kf.ones(2),))[1].tolist() == [6.0, 2.0]

    def switched_off(x):
        with kf.no_grad():
            return x * x

    assert kf.jvp(switched_off, (x,), (kf.ones(2),))[1].tolist() == [0.0, 0.0]
    w = kf.ones(2).requires_grad_()
    with kf.no_grad():
        assert not kf.jvp(lambda x: x * w, (x,), (kf.ones(2),))[1].requires_grad


def test_of_complex_numbers_it_is_the_derivative_along_a_direction():
    z, t = rand(3) + 1j * rand(3), rand(3) * (0.5 - 2j)
    for f, slope in (
        (kf.exp, np.exp),
        (kf.sin, np.cos),
        (lambda z: z * z * z, lambda z: 3 * z * z),
    ):
        assert np.allclose(kf.jvp(f, (z,), (t,))[1], slope(z) * t)
    for f in (kf.abs, kf.real, kf.conj, lambda z: z * kf.conj(z), lambda z: kf.sum(z * kf.real(z))):
        expected = differences(lambda z: f(kf.asarray(z)).numpy(), z, t)  # noqa: B023
        assert np.allclose(kf.jvp(f, (z,), (t,))[1], expected)
    assert np.allclose(kf.jacfwd(kf.exp)(z), np.diag(np.exp(z)))


def test_levels_nest_without_confusion():
    one = kf.asarray(1.0)

    def derivative(f):
        return lambda x: kf.jvp(f, (x,), (one,))[1]

    assert derivative(derivative(derivative(lambda x: x**3)))(kf.asarray(2.0)).item() == 6.0
    confused = derivative(lambda x: x * derivative(lambda y: x + y)(one))
    assert confused(kf.asarray(3.0)).item() == 1.0
    outer = derivative(lambda x: derivative(lambda y: x * y * y)(x))
    assert outer(kf.asarray(3.0)).item() == 12.0  # d/dx 2 x^2
    unused = kf.jvp(lambda x: kf.jvp(lambda y: y * 2.0, (one,), (x,))[1], (one,), (one,))
    assert unused[1].item() == 2.0


def test_both_modes_of_each_other():
    x, t = kf.asarray(rand(3)), kf.asarray(rand(3) - 1.0)

    def f(x):
        return kf.sum(kf.exp(x) * kf.ops.aten.softmax(x, 0))

    product = differences(lambda x: kf.grad(f)(kf.asarray(x)).numpy(), x.numpy(), t.numpy())
    forward_over_reverse = kf.jvp(kf.grad(f), (x,), (t,))[1]
    reverse_over_forward = kf.grad(lambda x: kf.jvp(f, (x,), (t,))[1])(x)
    reverse_over_reverse = kf.grad(lambda x: kf.sum(kf.grad(f)(x) * t))(x)
    for found in (forward_over_reverse, reverse_over_forward, reverse_over_reverse):
        assert np.allclose(found.numpy(), product)
        assert not found.requires_grad
    leaf = x.detach().requires_grad_()
    kf.jvp(f, (leaf,), (t,))[1].backward()
    assert np.allclose(leaf.grad.numpy(), product)
    # The value beside the gradient keeps its tangent, and so do checkpoints.
    (value, _), (along, _) = kf.jvp(kf.value_and_grad(f), (x,), (t,))
    assert np.allclose(along.item(), kf.jvp(f, (x,), (t,))[1].item())
    assert not value.requires_grad
    again = kf.jvp(kf.grad(lambda x: kf.checkpoint(f, x)), (x,), (t,))[1]
    assert np.allclose(again.numpy(), product)
    third = kf.jvp(lambda x: kf.jvp(kf.grad(f), (x,), (t,))[1], (x,), (t,))[1].numpy()

    def second(x):
        return kf.jvp(kf.grad(f), (kf.asarray(x),), (t,))[1].numpy()

    assert np.allclose(third, differences(second, x.numpy(), t.numpy()))


def test_inside_and_around_vmap():
    x, directions = rand(3), rand(5, 3)
    whole = kf.vmap(lambda t: kf.jvp(mixture, (x,), (t,))[1])(directions)
    each = np.stack([kf.jvp(mixture, (x,), (t,))[1] for t in directions])
    assert np.allclose(whole, each)
    points = rand(4, 3)
    both = kf.vmap(lambda x, t: kf.jvp(mixture, (x,), (t,)))(points, directions[:4])
    each = [kf.jvp(mixture, (x,), (t,)) for x, t in zip(points, directions, strict=False)]
    assert np.allclose(both[0], np.stack([value for value, _ in each]))
    assert np.allclose(both[1], np.stack([tangent for _, tangent in each]))
    around = kf.jvp(kf.vmap(mixture), (points,), (directions[:4],))
    assert np.allclose(around[1], both[1])
    # Axes elsewhere, and a level of its own for each example.
    moved = kf.vmap(lambda t: kf.jvp(mixture, (x,), (t,))[1], in_axes=1, out_axes=1)(directions.T)
    assert np.allclose(moved, whole.T)

    def along_all(a):
        return kf.vmap(lambda t: kf.jvp(mixture, (a,), (t,))[1])(directions)

    nested = kf.vmap(along_all)(points)
    assert np.allclose(nested[2], along_all(points[2]))
    per_example = kf.vmap(lambda x, t: kf.jvp(kf.grad(lambda x: kf.sum(mixture(x))), (x,), (t,))[1])
    one = kf.jvp(kf.grad(lambda x: kf.sum(mixture(x))), (points[1],), (directions[1],))[1]
    assert np.allclose(per_example(points, directions[:4])[1], one)


def test_a_trace_has_the_operators_of_the_tangent():
    x, t = rand(3), rand(3)
    graph = kf.trace(lambda x, t: kf.jvp(lambda x: kf.sin(x) * x, (x,), (t,))[1], x, t)
    assert [node.operator for node in graph.nodes].count("aten::sin") == 1
    assert "keyfold::elementwise" in str(graph)
    y, s = rand(3) + 1.0, rand(3) - 2.0
    assert np.allclose(graph(y, s), (np.cos(y) * y + np.sin(y)) * s)
    assert np.allclose(kf.trace(kf.grad(lambda x: kf.sum(x * x)), x)(y), 2 * y)


def test_profiles_and_autocast():
    x = kf.asarray(rand(2, 2).astype(np.float32))
    with kf.profile() as profile:
        kf.jvp(lambda x: x @ x, (x,), (x,))
    assert [event["name"] for event in profile.events].count("aten::matmul") >= 2
    with kf.autocast("bfloat16"):
        value, tangent = kf.jvp(lambda x: x @ x, (x,), (x,))
    assert str(value.dtype) == str(tangent.dtype) == "bfloat16"
    assert np.allclose(tangent.to("float32").numpy(), 2 * (x @ x).numpy(), rtol=0.02)


def test_writes_in_place():
    x, t = kf.asarray(rand(3)), kf.asarray(rand(3) - 1.0)

    def assigned(x):
        y = kf.zeros(3, dtype="float64")
        y[1:] = x[:2] * x[:2]
        y += x
        y *= x
        y[0] = 5.0
        y[kf.asarray([2])] = x[:1]
        return y

    value, tangent = kf.jvp(assigned, (x,), (t,))
    expected = differences(lambda x: assigned(kf.asarray(x)).numpy(), x.numpy(), t.numpy())
    assert np.allclose(tangent.numpy(), expected)
    assert value[0].item() == 5.0
    assert np.allclose(kf.jacrev(assigned)(x).numpy() @ t.numpy(), expected)

    def written_over(x):
        y = kf.exp(x)
        return kf.ops.aten.fill_(y, 1.0)

    assert kf.jvp(written_over, (x,), (t,))[1].tolist() == [0.0, 0.0, 0.0]


# Which of two levels' tangents the written tensor and the written value have.
NESTED_WRITES = {
    "both": (lambda x, u: (x * u, x * u)),
    "outer into inner": (lambda x, u: (u * 2.0, x[:2] * x[1:])),
    "inner into outer": (lambda x, u: (x * 2.0, u[:2] * x[1:])),
    "both into neither": (lambda x, u: (kf.zeros(3, dtype="float64"), u[:2] * x[1:])),
}


@pytest.mark.parametrize("case", NESTED_WRITES)
def test_writes_in_place_at_two_levels(case):
    operands = NESTED_WRITES[case]
    x, u, t = (kf.asarray(rand(3) + 0.5) for _ in range(3))

    def written(x, u):
        y, value = operands(x, u)
        y[:2] = value[:2]
        y[2] = x[0] * u[1]
        return y

    def built(x, u):
        y, value = operands(x, u)
        y = kf.concat([value[:2], y[2:]])
        return kf.concat([y[:2], kf.reshape(x[0] * u[1], (1,))])

    def inner(f):
        return lambda x: kf.jvp(lambda u: f(x, u), (u,), (t,))[1]

    def gradient(f):
        return lambda x: kf.grad(lambda u: kf.sum(f(x, u)))(u)

    for order in (inner, gradient):
        expected = kf.jvp(order(built), (x,), (t,))
        found = kf.jvp(order(written), (x,), (t,))
        assert np.allclose(found[0].numpy(), expected[0].numpy())
        assert np.allclose(found[1].numpy(), expected[1].numpy())
        recorded = kf.grad(lambda x, order=order: kf.sum(order(written)(x)))(x)
        wanted = kf.grad(lambda x, order=order: kf.sum(order(built)(x)))(x)
        assert np.allclose(recorded.numpy(), wanted.numpy())


def test_a_view_from_before_a_nested_write_is_an_error():
    x, t = kf.ones(3), kf.ones(3)

    def before(x, u):
        y = u * 2.0
        part = y[:1]
        y[0] = x[0]
        return part * 2.0

    with pytest.raises(kf.GradientError, match="changed in place after its tangent"):
        kf.jvp(lambda x: kf.jvp(lambda u: before(x, u), (t,), (t,))[1], (x,), (t,))

    def unrelated(x, u):
        y = kf.zeros(3)
        part = y[:1]
        y += x * u
        return part

    with pytest.raises(kf.GradientError, match="has no tangent and shares its memory"):
        kf.jvp(lambda x: kf.jvp(lambda u: unrelated(x, u), (t,), (t,))[1], (x,), (t,))


REFUSED = {
    "of the caller's": (lambda x: x.__iadd__(1.0), "'self' is a view of another tensor"),
    "a view": (
        lambda x: kf.ops.aten.fill_(kf.exp(x)[:2], 1.0),
        "'self' is a view of another tensor",
    ),
    "seen by others": (
        lambda x: (lambda y, part: y.__iadd__(x))(*(lambda y: (y, y[:1]))(kf.zeros(3))),
        "has no tangent and shares its memory",
    ),
    "out=": (lambda x: kf.add(x, x, out=kf.zeros(3)), "writes to argument 'out'"),
    "under no_grad": (lambda x: _written_under_no_grad(kf.exp(x)), "was changed in place after"),
    "DLPack": (np.from_dlpack, r"with a tangent \(inside jvp\) can't be shared by __dlpack__\(\)"),
    "a list": (
        lambda x: [x, "text"],
        "is 'text', and no tensor",
    ),
}


def _written_under_no_grad(y):
    with kf.no_grad():
        kf.ops.aten.fill_(y, 1.0)
    return y * 2.0


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_silently_wrong_is_an_error(case):
    function, message = REFUSED[case]
    x = kf.ones(3)
    errors = (kf.GradientError, kf.BindingError, kf.ExchangeError)
    with pytest.raises(errors, match=message):
        kf.jvp(function, (x,), (x,))
    assert x.tolist() == [1.0, 1.0, 1.0]


MISTAKES = {
    "no tuple": (lambda x: kf.jvp(kf.exp, x, x), kf.BindingError, "primals has the positional"),
    "shape": (
        lambda x: kf.jvp(kf.exp, (x,), (x[:1],)),
        kf.GradientError,
        r"\(1,\), but that .*2",
    ),
    "structure": (
        lambda x: kf.jvp(kf.exp, (x,), (x, x)),
        kf.BindingError,
        "a tuple of 1 and .* 2",
    ),
    "whole numbers": (
        lambda x: kf.jvp(kf.abs, (kf.asarray([1]),), (kf.asarray([1]),)),
        kf.DTypeError,
        r"primals\[0\]: a tensor of dtype int64 has no tangent",
    ),
    "dtype": (
        lambda x: kf.jvp(kf.exp, (x,), (x.to("float32"),)),
        kf.GradientError,
        "a tangent of float32.* doesn't fit a primal of float64",
    ),
    "aux": (lambda x: kf.jvp(kf.exp, (x,), (x,), has_aux=True), kf.BindingError, "result, aux"),
    "argnums": (lambda x: kf.jacfwd(kf.exp, 1)(x), kf.BindingError, "argnums=1"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_errors_that_say_what_is_right(case):
    call, kind, message = MISTAKES[case]
    with pytest.raises(kind, match=message):
        call(kf.ones(2))


def test_a_tangent_ends_with_its_jvp():
    leaked = []
    kf.jvp(lambda x: leaked.append(x * 2.0) or x, (kf.ones(2),), (kf.ones(2),))
    with pytest.raises(kf.GradientError, match=r"aten::mul.*a jvp that has ended"):
        leaked[0] * 2.0
    assert leaked[0].detach().tolist() == [2.0, 2.0]
    with pytest.raises(kf.ExchangeError, match="with a tangent"):
        kf.jvp(lambda x: kf.asarray(x.numpy()), (kf.ones(2),), (kf.ones(2),))
    assert "with a tangent" in repr(
        kf.jvp(lambda x: (x, repr(x)), (kf.ones(2),), (kf.ones(2),), has_aux=True)[2]
    )


def test_operators_of_ones_own(define):
    cube = define("jvp_test::cube(Tensor x) -> Tensor", lambda x: np.asarray(x) ** 3)
    x, t = kf.asarray([1.0, 2.0]), kf.asarray([1.0, 0.5])
    with pytest.raises(kf.GradientError, match=r"jvp_test::cube has no rule .*register_jvp"):
        kf.jvp(cube, (x,), (t,))
    handle = kf.register_jvp(cube, lambda inputs, tangents, _: 3 * inputs[0] ** 2 * tangents[0])
    assert kf.jvp(cube, (x,), (t,))[1].tolist() == [3.0, 6.0]
    assert kf.jvp(lambda x: kf.jvp(cube, (x,), (t,))[1], (x,), (t,))[1].tolist() == [6.0, 3.0]
    assert np.allclose(kf.jacfwd(cube)(x).numpy(), np.diag([3.0, 12.0]))
    with pytest.raises(kf.RegistrationError, match="has a rule for tangents already"):
        kf.register_jvp("jvp_test::cube", lambda *_: None)
    zero = kf.register_jvp("jvp_test::cube", lambda *_: None, override="shadow")
    assert kf.jvp(cube, (x,), (t,))[1].tolist() == [0.0, 0.0]
    assert zero.remove()
    assert not zero.remove()
    assert handle.active

    @kf.register_jvp("jvp_test::cube", override="replace")
    def wrong(inputs, tangents, output):
        return kf.zeros(5)

    assert not handle.active
    with pytest.raises(kf.GradientError, match=r"rule of jvp_test::cube gave .*float64\[5\]"):
        kf.jvp(cube, (x,), (t,))
    kf.register_jvp("jvp_test::cube", lambda *_: "text", override="replace")
    with pytest.raises(kf.GradientError, match=r"has to return a tensor .* not "):
        kf.jvp(cube, (x,), (t,))


def test_operators_that_need_no_rule(define):
    x, t = kf.asarray([1.0, 2.0]), kf.asarray([1.0, 0.5])
    composite = define(
        "jvp_test::square_sum(Tensor x) -> Tensor",
        lambda x: kf.sum(x * x),
        "CompositeImplicitAutograd",
    )
    assert kf.jvp(composite, (x,), (t,))[1].item() == 4.0
    order = define("jvp_test::order(Tensor x) -> Tensor", lambda x: np.argsort(np.asarray(x)))
    assert kf.jvp(order, (x,), (t,))[1].tolist() == [0, 0]
    scaled = kf.elementwise("jvp_test::scaled(Tensor x, Tensor y, float a) -> Tensor", "a * x * y")
    _, tangent = kf.jvp(lambda x: scaled(x, kf.sin(x), 2.0), (x,), (t,))
    v, s = x.numpy(), t.numpy()
    assert np.allclose(tangent.numpy(), 2 * s * (np.sin(v) + v * np.cos(v)))
    two = define(
        "jvp_test::both(Tensor x, Tensor[] rest) -> (Tensor, Tensor)",
        lambda x, rest: (np.asarray(x) * 2, np.asarray(rest[0]) + np.asarray(x)),
    )
    kf.register_jvp(
        two,
        lambda inputs, tangents, output: (
            None if tangents[0] is None else tangents[0] * 2,
            tangents[1][0] if tangents[0] is None else tangents[0] + tangents[1][0],
        ),
    )
    _, (first, second) = kf.jvp(lambda x: two(x, [x * 3.0, x]), (x,), (t,))
    assert first.tolist() == [2.0, 1.0]
    assert second.tolist() == [4.0, 2.0]
    _, (first, second) = kf.jvp(lambda y: two(x, [y]), (x,), (t,))
    assert first.tolist() == [0.0, 0.0]
    assert second.tolist() == [1.0, 0.5]
