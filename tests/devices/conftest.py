"""Fixtures for the tests of devices."""

import pytest

from tests.helpers import opencl
from tests.helpers.paths import EXAMPLES
from tests.helpers.plugins import build


@pytest.fixture(scope="session")
def pocl_variables(tmp_path_factory):
    """The variables with which examples/backend-opencl finds pocl; skips without it.

    All tests share the folders of compiled programs.
    """
    variables = opencl.pocl(tmp_path_factory.mktemp("pocl"))
    if variables is None:
        pytest.skip("pocl isn't installed: pyopencl's wheel has it")
    if why := opencl.unusable():
        pytest.skip(why)
    return variables


@pytest.fixture(scope="module")
def pocl(pocl_variables):
    """Those variables, which are set in this process, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in pocl_variables.items():
            patch.setenv(name, value)
        yield pocl_variables


@pytest.fixture(scope="session")
def opencl_library(pocl_variables, tmp_path_factory):
    """The library of examples/backend-opencl."""
    return build(EXAMPLES / "backend-opencl" / "Cargo.toml", tmp_path_factory.mktemp("opencl"))
