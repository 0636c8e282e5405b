"""Fixtures for the tests of dispatch."""

import pytest


@pytest.fixture
def f(d):
    """An isolated dispatcher with `f(Tensor x) -> Tensor` and nothing else."""
    d.define("f(Tensor x) -> Tensor")
    return d
