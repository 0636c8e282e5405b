"""Fixtures for the tests of other libraries' arrays."""

import pytest

from tests.helpers.array_libraries import MAKERS


@pytest.fixture(params=MAKERS)
def library(request):
    """Each library of arrays that is installed."""
    return MAKERS[request.param]()
