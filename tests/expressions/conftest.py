"""Fixtures for the tests of expressions."""

import pytest

import keyfold as kf


@pytest.fixture
def define(ns):
    """Makes an operator of the test's own: `define("name(...) -> Tensor", text)`."""
    made = []

    def make(schema, text, **options):
        made.append(kf.elementwise(f"{ns}::{schema}", text, **options))
        return made[-1]

    yield make
    for operator in reversed(made):
        operator.remove()
