"""Tags of operators: what holds for every call and no schema says."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import keyfold as kf


def test_the_built_in_operators_have_theirs():
    assert kf.get_op("aten::rand").tags == ["nondeterministic_seeded"]
    assert kf.get_op("aten::dropout").tags == ["nondeterministic_seeded"]
    assert kf.get_op("aten::masked_select").tags == ["data_dependent_shape"]
    assert kf.get_op("aten::add").tags == []


@contextmanager
def defined(schema, **options):
    handle = kf.define(schema, **options)
    try:
        yield kf.get_op(schema.split("(")[0])
    finally:
        handle.remove()


def test_an_operator_has_those_that_it_was_defined_with():
    both = ["nondeterministic_seeded", "data_dependent_shape"]
    with defined("tags_test::both(Tensor x) -> Tensor", tags=reversed(both)) as operator:
        assert operator.tags == both
    with defined("tags_test::one(Tensor x) -> Tensor", tags=both[1]) as operator:
        assert operator.tags == both[1:]


def test_a_tag_that_there_is_not_is_refused_by_name():
    with pytest.raises(kf.InvalidValue, match=r"'tags'.*'random' isn't a tag.*nondeterministic"):
        kf.define("tags_test::wrong(Tensor x) -> Tensor", tags=["random"])
    with pytest.raises(kf.UnknownOperator):
        kf.get_op("tags_test::wrong")


def test_a_trace_keeps_the_calls_of_an_operator_that_draws():
    def trace(tags):
        with defined("tags_test::noise(Tensor x) -> Tensor", tags=tags) as noise:
            kf.impl("tags_test::noise", "CPU", lambda x: x + 0.0)

            def f(x):
                noise(x)
                return x * 2

            return str(kf.trace(f, kf.ones(2)).simplified())

    assert "tags_test::noise" in trace("nondeterministic_seeded")
    assert "tags_test::noise" not in trace(())
