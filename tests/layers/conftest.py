"""Fixtures for the tests of layers."""

import gc

import pytest


@pytest.fixture
def define(op):
    """Defines an operator with a CPU kernel: `define(schema, kernel)`."""
    return lambda schema, kernel: op(schema, kernel)[0]


@pytest.fixture
def no_garbage():
    """Collect other tests' handles, whose kernels' removal would make recordings outdated."""
    gc.collect()
