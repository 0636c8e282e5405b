"""Fixtures for the tests of layers."""

import gc

import pytest

from keyfold import _core


@pytest.fixture(scope="package", autouse=True)
def small_tiles():
    """Compute small tensors tile by tile, as large ones are."""
    before = _core._set_tile_cache(0)
    yield
    _core._set_tile_cache(before)


@pytest.fixture
def define(op):
    """Defines an operator with a CPU kernel: `define(schema, kernel)`."""
    return lambda schema, kernel: op(schema, kernel)[0]


@pytest.fixture
def no_garbage():
    """Collect other tests' handles, whose kernels' removal would make recordings outdated."""
    gc.collect()
