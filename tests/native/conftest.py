"""Fixtures for the tests of native kernels and plugins."""

import pytest

from tests.helpers.paths import EXAMPLES
from tests.helpers.plugins import build


@pytest.fixture(scope="module")
def numba():
    return pytest.importorskip("numba", reason="numba isn't installed")


@pytest.fixture(scope="session")
def plugin_target(tmp_path_factory):
    """The folder `target` that plugins in Rust are built in, so that their SDK is built once."""
    return tmp_path_factory.mktemp("plugins") / "target"


@pytest.fixture(scope="session")
def example(plugin_target):
    """The library of examples/plugin."""
    return build(EXAMPLES / "plugin" / "Cargo.toml", plugin_target)


@pytest.fixture(scope="session")
def example_device(plugin_target):
    """The library of examples/plugin-device."""
    return build(EXAMPLES / "plugin-device" / "Cargo.toml", plugin_target)
