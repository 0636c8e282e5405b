"""Fixtures for the tests of native kernels."""

import pytest


@pytest.fixture(scope="module")
def numba():
    return pytest.importorskip("numba", reason="numba isn't installed")
