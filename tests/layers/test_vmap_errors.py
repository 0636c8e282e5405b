"""vmap used wrongly, and in threads, tasks and contexts."""

import asyncio
import threading

import numpy as np
import pytest

import keyfold as kf


class TestErrors:
    def check(self, error, text, run):
        with pytest.raises(error, match=text) as caught:
            run()
        assert isinstance(caught.value, kf.Error)

    def test_nothing_to_map_over(self):
        self.check(kf.InvalidValue, "nothing to map", lambda: kf.vmap(kf.exp, None)(np.ones(3)))
        self.check(kf.InvalidValue, "nothing to map", lambda: kf.vmap(lambda: 1)())

    def test_sizes_that_differ_name_both(self):
        run = lambda: kf.vmap(lambda x, y: x, (0, 1))(np.ones(3), {"w": np.ones((2, 4))})  # noqa: E731
        self.check(
            kf.ShapeError,
            r"argument 0 has size 3 along axis 0, argument 1\['w'\] has size 4 along axis 1",
            run,
        )
        self.check(
            kf.ShapeError, "'y' has size 2", lambda: kf.vmap(kf.add)(np.ones(3), y=np.ones(2))
        )

    def test_an_axis_that_is_not_there(self):
        self.check(kf.IndexOutOfRange, r"\(3,\).*no axis 1", lambda: kf.vmap(kf.exp, 1)(np.ones(3)))
        self.check(kf.IndexOutOfRange, "no axis 0", lambda: kf.vmap(kf.exp)(np.float64(3)))
        self.check(
            kf.IndexOutOfRange,
            "axis 2.*2 axes",
            lambda: kf.vmap(kf.exp, out_axes=2)(np.ones((3, 2))),
        )

    @pytest.mark.parametrize(
        ("in_axes", "args"),
        [
            ((0,), (np.ones(2), np.ones(2))),
            (((0, 0), 0), ((np.ones(2),), np.ones(2))),
            (({"a": 0}, 0), ({"b": np.ones(2)}, np.ones(2))),
            (((0, 0), 0), (np.ones(2), np.ones(2))),
            (({"a": 0}, 0), ([np.ones(2)], np.ones(2))),
            (((0,), 0), ({"a": np.ones(2)}, np.ones(2))),
        ],
    )
    def test_in_axes_of_another_structure(self, in_axes, args):
        self.check(kf.InvalidValue, "in_axes", lambda: kf.vmap(lambda x, y: x, in_axes)(*args))

    def test_axes_of_another_kind(self):
        for axes in ("0", 0.5, True, (0, "a")):
            with pytest.raises(TypeError, match="in_axes"):
                kf.vmap(kf.exp, axes)
        with pytest.raises(TypeError, match="out_axes"):
            kf.vmap(kf.exp, out_axes=object())
        with pytest.raises(TypeError, match="function"):
            kf.vmap(3)

    def test_out_axes_that_do_not_fit(self):
        self.check(
            kf.InvalidValue,
            "differs from example to example",
            lambda: kf.vmap(kf.exp, out_axes=None)(np.ones(3)),
        )
        self.check(
            kf.InvalidValue,
            "out_axes",
            lambda: kf.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(np.ones(3)),
        )

    def test_what_is_no_tensor(self):
        self.check(
            kf.BindingError, "argument 1.*no tensor", lambda: kf.vmap(kf.add)(np.ones(3), 2.0)
        )
        self.check(
            kf.BindingError,
            r"result of .*\[1\] is 3.*no tensor",
            lambda: kf.vmap(lambda x: (x, 3))(np.ones(3)),
        )

    @pytest.mark.parametrize(
        "read", [bool, float, int, lambda x: x.numpy(), lambda x: x.tolist(), np.asarray]
    )
    def test_reading_an_examples_data(self, read):
        self.check(
            kf.InvalidValue, "vmap", lambda: kf.vmap(lambda x: x * float(read(x)))(np.ones(3))
        )

    def test_an_example_after_its_vmap(self, define):
        kept = []
        f = define("leak(Tensor x) -> Tensor", lambda x: x * 1)
        kf.register_vmap(f, lambda info, dims, x: (x, dims[0]))
        kf.vmap(lambda x: kept.append(x) or f(x))(np.ones((3, 2)))
        self.check(kf.InvalidValue, "ended", lambda: kf.exp(kept[0]))
        self.check(
            kf.InvalidValue, "ended", lambda: kf.vmap(lambda x: kf.add(x, kept[0]))(np.ones(3))
        )
        self.check(kf.InvalidValue, "ended", lambda: kf.vmap(lambda x: kept[0])(np.ones((3, 2))))
        assert "example of a batch of 3" in repr(kept[0])

    def test_an_inner_example_returned_by_the_outer_one(self):
        kept = []

        def outer(x):
            kf.vmap(lambda y: kept.append(y) or y)(x)
            return kept[-1]

        self.check(kf.InvalidValue, "ended|level", lambda: kf.vmap(outer)(np.ones((2, 3))))

    def test_writing_what_all_examples_share(self):
        shared = kf.zeros((2,))

        def f(x):
            shared[:] = x
            return x

        self.check(kf.InvalidValue, "write over", lambda: kf.vmap(f)(np.ones((3, 2))))

    def test_writing_an_example_by_an_operator_without_a_rule(self):
        x = np.array([[1.0, 2.0], [3.0, 4.0]])
        w = kf.asarray(3.0).requires_grad_()
        put = kf.ops.aten.index_put_

        def tripled(x):
            y = x * 2
            put(y, [np.array([0, 1])], y * 3)
            return kf.sum(y)

        def weighted(x):
            y = x * 1
            put(y, [np.array([0, 1])], w)
            return kf.sum(y)

        for f in (kf.vmap(kf.grad(tripled)), kf.vmap(weighted)):
            self.check(kf.GradientError, "requires grad.*new tensor", lambda f=f: f(x))
        whole = kf.grad(lambda x: kf.sum(kf.vmap(tripled)(x)))
        self.check(kf.GradientError, "argument 'self'.*batch of 2", lambda: whole(x))
        # Where nothing is recorded, it is written.
        np.testing.assert_array_equal(kf.vmap(tripled)(x), 6 * x.sum(axis=1))
        with kf.no_grad():
            np.testing.assert_array_equal(kf.vmap(weighted)(x), [6.0, 6.0])

    def test_a_keyword_argument_that_is_no_tensor(self):
        def scaled(x, k):
            return x * k

        text = "keyword arguments are mapped over axis 0.*'k'.*2.*functools.partial"
        self.check(kf.BindingError, text, lambda: kf.vmap(scaled)(np.ones(3), k=2))
        by_position = kf.vmap(scaled, in_axes=(0, None))(np.ones(3), 2)
        np.testing.assert_array_equal(by_position, [2, 2, 2])

    def test_a_checkpoint_inside(self):
        x = kf.asarray(np.ones((3, 2))).requires_grad_()
        f = kf.vmap(lambda x: kf.checkpoint(lambda x: kf.sum(x * x), x))
        self.check(kf.GradientError, "checkpoint.*vmap.*inside", lambda: kf.sum(f(x)).backward())
        # Backward inside works, and the other way round.
        each = kf.vmap(kf.grad(lambda x: kf.checkpoint(lambda x: kf.sum(x * x), x)))(
            np.ones((3, 2))
        )
        np.testing.assert_array_equal(each, np.full((3, 2), 2.0))
        kf.sum(kf.checkpoint(kf.vmap(lambda x: kf.sum(x * x)), x)).backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 2), 2.0))

    def test_an_error_ends_the_frame(self):
        with pytest.raises(ZeroDivisionError):
            kf.vmap(lambda x: 1 / 0)(np.ones(3))
        assert kf.vmap(lambda x: x + 1)(np.ones(2)).tolist() == [2, 2]

    def test_shapes_in_errors_are_an_examples(self):
        with pytest.raises(kf.ShapeError) as caught:
            kf.vmap(kf.add)(np.ones((7, 3)), np.ones((7, 4)))
        assert "7" not in str(caught.value)

    def test_an_empty_batch(self, define):
        assert kf.vmap(lambda x: kf.sum(x))(np.ones((0, 3))).shape == (0,)
        f = define("nometa(Tensor x) -> Tensor", lambda x: x * 1)
        self.check(kf.NotSupported, "nometa.*Meta", lambda: kf.vmap(f)(np.ones((0, 3))))


class TestContexts:
    def test_levels_belong_to_the_thread(self):
        levels = []

        def f(x):
            def other():
                kf.vmap(lambda y: levels.append(repr(y)) or y)(np.ones(2))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return x

        kf.vmap(f)(np.ones(3))
        assert "level 1" in levels[0]

    def test_tasks_have_levels_of_their_own(self):
        texts = {}

        async def task(name, other):
            with kf._core._VmapFrame(3, "error") as frame:
                x = kf.ops.keyfold._vmap_enter(kf.ones((3,)), 0, frame.level)
                await asyncio.sleep(0)
                texts[name] = repr(x)
                await asyncio.sleep(0)

        async def main():
            await asyncio.gather(task("a", "b"), task("b", "a"))

        asyncio.run(main())
        assert all("level 1" in text for text in texts.values())

    def test_explain_names_rule_and_loop(self, define):
        f = define("explained(Tensor x) -> Tensor", lambda x: x * 1)
        texts = []

        def run(x):
            texts.append(str(kf.explain("aten::add", x, x)))
            texts.append(str(kf.explain(f, x)))
            return x

        kf.vmap(run)(np.ones(3))
        assert "built in: batching rule" in texts[0]
        assert "built in: one call per example" in texts[1]
