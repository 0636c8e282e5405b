"""vmap: mapped functions against a Python loop, axes and structures, rules, errors."""

from collections import namedtuple

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import keyfold as kf
from tests.helpers.loops import by_loop
from tests.helpers.tensors import random


class TestAgainstALoop:
    UNARY = (
        kf.exp,
        kf.tanh,
        kf.abs,
        kf.sin,
        lambda x: x * 2 - 1,
        lambda x: 1 / (x * x + 1),
        lambda x: kf.where(x > 0, x, 0.5),
        lambda x: kf.sum(x, axis=-1, keepdims=True) if x.ndim else x,
        lambda x: kf.max(x) + x,
        lambda x: kf.softmax(x, axis=-1) if x.ndim else x,
        lambda x: kf.mean(x),
        lambda x: kf.flip(x),
        lambda x: kf.permute_dims(x, tuple(reversed(range(x.ndim)))),
        lambda x: kf.reshape(x, (-1,)),
        lambda x: kf.expand_dims(x, axis=0),
        lambda x: x[0] if x.ndim else x,
        lambda x: x[..., ::2] if x.ndim else x,
        lambda x: kf.matmul(kf.reshape(x, (1, -1)), kf.reshape(x, (-1, 1))),
        lambda x: kf.stack([x, x * 3]),
        lambda x: kf.concat([kf.reshape(x, (-1,)), kf.reshape(x, (-1,))]),
        lambda x: kf.astype(x, kf.float32),
        lambda x: kf.argmax(x),
        lambda x: kf.take(x, kf.asarray([0, 0]), axis=0) if x.ndim else x,
    )
    BINARY = (kf.add, kf.multiply, kf.maximum, kf.subtract, lambda x, y: kf.where(x < y, x, y))

    @staticmethod
    def arrays(shape):
        elements = st.floats(-4, 4, width=32).map(float)
        return npst.arrays(np.float64, shape, elements=elements)

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_programs_of_random_operators_and_axes(self, data):
        size = data.draw(st.integers(1, 4), label="size")
        shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, max_side=3), label="shape")
        other = data.draw(npst.broadcastable_shapes(shape, max_dims=3, max_side=3), label="other")
        steps = data.draw(st.lists(st.integers(0, len(self.UNARY) - 1), max_size=4), label="steps")
        join = data.draw(st.sampled_from(range(len(self.BINARY))), label="join")
        in_axes = []
        args = []
        for name, own in (("x", shape), ("y", other)):
            mapped = name == "x" or data.draw(st.booleans(), label=f"{name} mapped")
            axis = data.draw(st.integers(-len(own) - 1, len(own)), label=name) if mapped else None
            full = list(own)
            if mapped:
                full.insert(axis if axis >= 0 else len(own) + 1 + axis, size)
            in_axes.append(axis)
            args.append(data.draw(self.arrays(tuple(full)), label=name))

        def program(x, y):
            z = self.BINARY[join](x, y)
            for step in steps:
                z = self.UNARY[step](z)
            return z

        first = [
            a if axis is None else np.take(a, 0, axis)
            for a, axis in zip(args, in_axes, strict=True)
        ]
        rank = program(*(kf.from_numpy(np.asarray(a)) for a in first)).ndim
        out_axes = data.draw(st.integers(-rank - 1, rank), label="out")
        expected = by_loop(program, in_axes, out_axes, *args)
        result = kf.vmap(program, tuple(in_axes), out_axes)(*args)
        assert isinstance(result, np.ndarray)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_operators_without_a_rule(self, data):
        shape = data.draw(npst.array_shapes(min_dims=1, max_dims=3, max_side=4))
        axis = data.draw(st.integers(0, len(shape) - 1))
        out = data.draw(st.integers(0, len(shape) - 1))
        x = data.draw(self.arrays(shape))
        handle = kf.define("vmaptest::norule(Tensor x, float k=2.0) -> Tensor")
        kernel = kf.impl("vmaptest::norule", "CPU", lambda x, k: kf.sin(x) * k)
        try:
            result = kf.vmap(kf.ops.vmaptest.norule, axis, out)(x)
        finally:
            kernel.remove()
            handle.remove()
        np.testing.assert_allclose(result, np.moveaxis(2 * np.sin(x), axis, out))

    def test_all_pairs_by_nesting(self):
        x, y = random(4, 3), random(5, 3)
        dot = lambda a, b: kf.sum(a * b)  # noqa: E731
        pairs = kf.vmap(kf.vmap(dot, (None, 0)), (0, None))(x, y)
        np.testing.assert_allclose(pairs, x @ y.T)
        crossed = kf.vmap(kf.vmap(dot, (None, 0)), (0, None), out_axes=1)(x, y)
        np.testing.assert_allclose(crossed, (x @ y.T).T)

    def test_a_function_inside_uses_what_is_outside(self):
        x, w = random(4, 3), kf.asarray(random(2, 3))
        result = kf.vmap(lambda row: kf.vmap(lambda v: kf.sum(v * row))(w))(kf.asarray(x))
        np.testing.assert_allclose(result.numpy(), x @ w.numpy().T)

    def test_gradients_reach_what_is_mapped(self):
        x = kf.asarray(np.arange(6.0).reshape(3, 2))
        x.requires_grad_()
        kf.sum(kf.vmap(lambda row: kf.sum(row * row))(x)).backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy())

    def test_each_example_has_its_own_gradient(self):
        x, w = random(4, 3), random(3)
        loss = lambda w, row: kf.sum(kf.sin(w * row))  # noqa: E731
        result = kf.vmap(kf.grad(loss), (None, 0))(w, x)
        np.testing.assert_allclose(result, np.cos(w * x) * x)


class TestStructures:
    def test_in_axes_follow_nested_arguments(self):
        Point = namedtuple("Point", "x y")
        x, y, z = random(3, 2), random(2, 3), random(2)

        def f(point, rest, *, scale):
            return {"sum": point.x + point.y + rest["z"], "both": (point.x * scale, [rest["z"]])}

        result = kf.vmap(f, in_axes=((0, 1), {"z": None}), out_axes={"sum": 1, "both": 0})(
            Point(x, y), {"z": z}, scale=np.array([1.0, 2.0, 3.0])
        )
        np.testing.assert_allclose(result["sum"], (x + y.T + z).T)
        np.testing.assert_allclose(result["both"][0], x * np.array([[1.0], [2.0], [3.0]]))
        np.testing.assert_allclose(result["both"][1][0], np.broadcast_to(z, (3, 2)))
        assert isinstance(result["both"], tuple)

    def test_the_structure_of_named_tuples_stays(self):
        Point = namedtuple("Point", "x y")
        result = kf.vmap(lambda p: Point(p.y, p.x))(Point(np.ones(2), np.zeros(2)))
        assert isinstance(result, Point)
        assert result.x.tolist() == [0, 0]

    def test_as_a_decorator_it_keeps_the_name(self):
        @kf.vmap
        def double(x):
            """Doubles."""
            return x * 2

        @kf.vmap(in_axes=1, out_axes=1)
        def row_sums(x):
            return kf.sum(x, keepdims=True)

        assert (double.__name__, double.__doc__) == ("double", "Doubles.")
        assert double(np.arange(3.0)).tolist() == [0, 2, 4]
        assert row_sums(np.ones((2, 3))).shape == (1, 3)

    def test_results_come_in_the_callers_library(self):
        x = np.ones((2, 3))
        assert isinstance(kf.vmap(kf.exp)(x), np.ndarray)
        assert isinstance(kf.vmap(kf.exp)(kf.asarray(x)), kf.Tensor)
        assert isinstance(kf.vmap(kf.add)(x, kf.asarray(x)), kf.Tensor)

    def test_what_does_not_depend_on_the_batch_is_repeated(self):
        c = np.array([1.0, 2.0])
        result = kf.vmap(lambda x: c, out_axes=1)(np.ones(3))
        assert result.tolist() == [[1, 1, 1], [2, 2, 2]]
        result[0, 0] = 9.0
        assert c[0] == 1
        same = kf.vmap(lambda x: (x, kf.asarray(c)), out_axes=(0, None))(np.ones(3))[1]
        assert same.shape == (2,)

    def test_none_stays_none(self):
        result = kf.vmap(lambda x, y: (x, y))(np.ones(3), None)
        assert result[1] is None
        assert result[0].shape == (3,)

    def test_an_example_knows_its_shape_and_prints(self):
        seen = []

        def f(x):
            seen.append((x.shape, x.ndim, x.dtype, len(x), repr(x)))
            return x

        kf.vmap(f)(np.ones((5, 3)))
        text = "Tensor(example of a batch of 5, level 1, shape=(3,), dtype=float64)"
        assert seen == [((3,), 1, kf.float64, 3, text)]
        seen.clear()
        kf.vmap(kf.vmap(f))(np.ones((5, 2, 3), np.float32))
        text = "Tensor(example of a batch of 2, level 2, shape=(3,), dtype=float32)"
        assert seen[0][-1] == text

    def test_a_tensors_methods_and_operators_work_on_an_example(self):
        x = np.arange(24.0).reshape(2, 3, 4)

        def f(x):
            y = x.T @ x
            a, b, c = x
            y = y + (a * b - c)[None, :]
            return y[1:, :2].reshape(-1)

        expected = []
        for item in x:
            y = item.T @ item + (item[0] * item[1] - item[2])[None, :]
            expected.append(y[1:, :2].reshape(-1))
        np.testing.assert_allclose(kf.vmap(f)(x), np.stack(expected))

    def test_examples_are_written_in_place(self):
        x = np.zeros((3, 2))

        def f(row, value):
            row[0] = value
            return row

        result = kf.vmap(f)(x, np.array([1.0, 2.0, 3.0]))
        assert x[:, 0].tolist() == [1, 2, 3]
        assert result[:, 0].tolist() == [1, 2, 3]

    def test_masks_and_positions_write_in_each_example(self):
        x = np.arange(12.0).reshape(3, 4)
        places = np.array([0, 3, 1])

        def f(row, place):
            row = row + 0
            row[kf.asarray([0, 1])] = -1.0
            row[row > 5] = 5.0
            return row, row[place], kf.take(row, kf.expand_dims(place, axis=0), axis=0)

        expected = x.copy()
        expected[:, :2] = -1
        expected[expected > 5] = 5
        rows, picked, taken = kf.vmap(f)(x, places)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(picked, expected[np.arange(3), places])
        np.testing.assert_array_equal(taken[:, 0], picked)

    def test_other_layers_apply_below(self):
        x, w = random(3, 4).astype(np.float32), kf.asarray(random(4, 2).astype(np.float32))
        with kf.autocast(kf.float16):
            by_rule = kf.vmap(lambda row: kf.matmul(row, w))(kf.asarray(x))
            alone = kf.matmul(kf.asarray(x[0]), w)
        assert by_rule.dtype == alone.dtype == kf.float16
        w.requires_grad_()
        with kf.no_grad():
            assert not kf.vmap(lambda row: kf.matmul(row, w))(kf.asarray(x)).requires_grad
        assert kf.vmap(lambda row: kf.matmul(row, w))(kf.asarray(x)).requires_grad

    def test_a_trace_has_the_batch_in_it_and_replays(self):
        f = kf.vmap(lambda row: kf.sum(row * row))
        x, y = kf.asarray(random(3, 4)), kf.asarray(random(5, 4))
        graph = kf.trace(f, x)
        text = str(graph)
        assert "vmap_enter" in text
        assert "vmap_exit" in text
        np.testing.assert_allclose(graph(x).numpy(), np.sum(x.numpy() ** 2, 1))
        np.testing.assert_allclose(f(y).numpy(), np.sum(y.numpy() ** 2, 1))


class TestUsersOperators:
    def test_a_cpu_kernel_alone_is_called_once_per_example(self, define):
        calls = []

        def kernel(x, y):
            calls.append((type(x), x.shape, y))
            return kf.sum(x) * kf.from_numpy(y)

        f = define("once(Tensor x, Tensor y) -> Tensor", kernel)
        y = np.array([1.0, 2.0])
        result = kf.vmap(f, (0, None))(np.arange(6.0).reshape(3, 2), y)
        assert result.tolist() == [[1, 2], [5, 10], [9, 18]]
        assert len(calls) == 3
        assert all(given is y for _, _, given in calls)
        assert calls[0][:2] == (kf.Tensor, (2,))

    def test_a_kernel_that_computes_with_numpy_works(self, define):
        f = define("np_sum(Tensor x) -> Tensor", lambda x: np.cumsum(np.asarray(x)))
        x = random(3, 4)
        np.testing.assert_allclose(kf.vmap(f)(x), np.cumsum(x, 1))

    def test_several_results_and_lists(self, define):
        f = define(
            "parts(Tensor[] xs, int n) -> (Tensor, Tensor[], int)",
            lambda xs, n: (xs[0] + xs[1], [x * n for x in xs], n),
        )
        x, y = random(3, 2), random(2)

        def g(x):
            total, items, n = f([x, kf.asarray(y)], 4)
            assert n == 4
            return total, items

        total, items = kf.vmap(g)(x)
        np.testing.assert_allclose(total, x + y)
        np.testing.assert_allclose(items[0], 4 * x)
        np.testing.assert_allclose(items[1], np.broadcast_to(4 * y, (3, 2)))

    def test_a_rule_is_called_once_for_all(self, define):
        f = define(
            "scaled(Tensor x, Tensor w, *, float k=2.0) -> Tensor", lambda x, w, k: x * w * k
        )
        seen = []

        def rule(info, in_dims, x, w, *, k):
            seen.append((info.batch_size, info.level, in_dims, type(x), x.shape, w, k))
            return f(x, kf.reshape(kf.asarray(w), (2, 1)), k=k), in_dims[0]

        handle = kf.register_vmap(f, rule)
        x, w = random(2, 3), np.ones((2,))
        result = kf.vmap(f, (1, None))(x, w)
        np.testing.assert_allclose(result, (2 * x).T)
        ((size, level, dims, kind, shape, given, k),) = seen
        assert (size, level, dims, kind, shape) == (3, 1, (1, None, None), kf.Tensor, (2, 3))
        assert given is w
        assert k == 2.0
        assert "rule" in str(f.default.table())
        assert handle.remove()
        assert not handle.remove()
        kf.vmap(f, (1, None))(x, w)
        assert len(seen) == 1

    def test_a_rule_of_lists_and_several_results(self, define):
        f = define(
            "pairs(Tensor[] xs) -> (Tensor, Tensor)",
            lambda xs: (xs[0] + xs[1], kf.sum(xs[1])),
        )

        @kf.register_vmap(f)
        def rule(info, in_dims, xs):
            assert in_dims == ([0, None],)
            return (xs[0] + xs[1], kf.sum(xs[1])), (0, None)

        x, y = random(3, 2), random(2)
        a, b = kf.vmap(lambda x: f([x, kf.asarray(y)]))(x)
        np.testing.assert_allclose(a, x + y)
        np.testing.assert_allclose(b, np.full(3, y.sum()))
        assert callable(rule)

    def test_rules_see_one_level_at_a_time(self, define):
        f = define("leveled(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)
        levels = []

        def rule(info, in_dims, x, y):
            levels.append((info.level, in_dims))
            if in_dims[0] is None:
                return f(x, y), 0
            return f(kf.reshape(x, (-1, 1)), y), 0

        with_rule = kf.register_vmap(f, rule)
        x, y = random(3), random(4)
        result = kf.vmap(lambda x: kf.vmap(lambda y: f(x, y))(kf.asarray(y)))(kf.asarray(x))
        np.testing.assert_allclose(result.numpy(), np.outer(x, y))
        assert [level for level, _ in levels] == [2, 1]
        with_rule.remove()

    @pytest.mark.parametrize(
        ("returned", "text"),
        [
            (lambda x: (x, 1), "size is 2"),
            (lambda x: (x, 5), "isn't there"),
            (lambda x: (x, (0, 0)), "2 batch dimensions"),
            (lambda x: (x, "front"), "out_dims"),
            (lambda x: (x, -1), "out_dims"),
            (lambda x: (x, True), "out_dims"),
            (lambda x: x, "returns"),
            (lambda x: (3.0, 0), "promises"),
        ],
    )
    def test_what_a_rule_returns_is_checked(self, define, returned, text):
        f = define("checked(Tensor x) -> Tensor", lambda x: x * 1)
        kf.register_vmap(f, lambda info, in_dims, x: returned(x))
        with pytest.raises(kf.KernelReturnError, match=text) as caught:
            kf.vmap(f)(np.ones((3, 2)))
        assert f.name in str(caught.value)

    def test_an_exception_in_a_rule_or_kernel_is_the_authors(self, define):
        def boom(*args):
            raise ZeroDivisionError("mine")

        f = define("boom(Tensor x) -> Tensor", boom)
        with pytest.raises(ZeroDivisionError, match="mine"):
            kf.vmap(f)(np.ones((3, 2)))
        kf.register_vmap(f, boom)
        with pytest.raises(ZeroDivisionError, match="mine"):
            kf.vmap(f)(np.ones((3, 2)))

    def test_a_second_rule_is_an_error_and_may_shadow(self, define):
        f = define("twice(Tensor x) -> Tensor", lambda x: x * 1)
        kf.register_vmap(f, lambda info, in_dims, x: (x, in_dims[0]))
        with pytest.raises(kf.RegistrationError):
            kf.register_vmap(f, lambda info, in_dims, x: (x * 2, in_dims[0]))
        second = kf.register_vmap(
            f, lambda info, in_dims, x: (x * 3, in_dims[0]), override="shadow"
        )
        assert kf.vmap(f)(np.ones(2)).tolist() == [3, 3]
        second.remove()
        assert kf.vmap(f)(np.ones(2)).tolist() == [1, 1]
        with pytest.raises(kf.BindingError, match="function"):
            kf.register_vmap(f, 3)
        with pytest.raises(kf.UnknownOperator):
            kf.register_vmap("vmaptest::nothing", lambda *args: args)


def test_boolean_assignment_to_examples_without_dimensions():
    x, mask = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])

    def put(x, mask, value):
        y = x * 1.0
        y[mask] = value
        return y

    assert kf.vmap(put, (0, 0, None))(x, mask, 9.0).tolist() == [9.0, 2.0, 9.0]
    assert kf.vmap(put)(x, mask, x * 2).tolist() == [2.0, 2.0, 6.0]
    rows = np.arange(6.0).reshape(3, 2)
    assert kf.vmap(put)(rows, mask, x).tolist() == [[1.0, 1.0], [2.0, 3.0], [3.0, 3.0]]

    def below(x):
        y = x * 1.0
        y[x > 1.5] = 0.0
        return y

    assert kf.vmap(below)(x).tolist() == [1.0, 0.0, 0.0]
    assert kf.vmap(kf.vmap(below))(rows).tolist() == [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    graph = kf.trace(below, kf.asarray(1.0))
    assert graph(kf.asarray(7.0)).item() == 0.0
    assert graph(kf.asarray(1.25)).item() == 1.25
    with pytest.raises(kf.InvalidValue, match="use as an index"):
        kf.vmap(lambda x: x[x > 1.5])(x)


def test_a_result_without_an_axis_is_in_kind():
    arrays = np.ones((2, 3)), np.arange(3.0)
    both = kf.vmap(lambda x, y: (x * 2.0, y * 2.0), (0, None), out_axes=(0, None))
    mapped, same = both(*arrays)
    assert type(mapped) is type(same) is np.ndarray
    mapped, same = both(*map(kf.asarray, arrays))
    assert type(mapped) is type(same) is kf.Tensor
