"""Fixtures for the tests of layers."""

import pytest


@pytest.fixture
def define(op):
    """Defines an operator with a CPU kernel: `define(schema, kernel)`."""
    return lambda schema, kernel: op(schema, kernel)[0]
