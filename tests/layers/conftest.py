"""Fixtures for the tests of layers."""

import gc

import pytest

import keyfold as kf
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


@pytest.fixture
def operator(lib):
    """Makes an operator of one tensor with a shape rule: `operator(name, kernel)`."""

    def make(name, kernel):
        lib.define(f"{name}(Tensor x) -> Tensor")
        lib.impl(name, kernel, "CPU")
        lib.impl(name, lambda x: kf.empty_like(x), "Meta")
        return getattr(getattr(kf.ops, lib.ns), name)

    return make
