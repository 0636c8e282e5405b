"""Fixtures: isolated dispatchers, process-wide keys, an array class of the tests' own."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import keyfold as kf
from tests.helpers.compiler import compile_c
from tests.helpers.paths import EXAMPLES

# How fast inputs are made says something about the machine, not about keyfold. Each run takes the
# same examples, so that what fails fails again; `make explore` looks for new ones.
settings.register_profile(
    "keyfold",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="KEYFOLD_EXPLORE" not in os.environ,
)
settings.load_profile("keyfold")

# A shell has what it runs in the background ignore Ctrl-C, which some tests send to themselves.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_counter = itertools.count()


def pytest_collection_finish():
    """Leave what thousands of collected tests are made of out of each `gc.collect()` of a test."""
    gc.collect()
    gc.freeze()


class Word:
    """An array class that has nothing to do with arrays: a text with dispatch keys."""

    def __init__(self, text, *keys):
        self.text = text
        self.keys = kf.DispatchKeySet(*(keys or ("CPU",)))

    def __repr__(self):
        return f"Word({self.text!r}, {self.keys})"


# Process-wide and never undone, as the register is: once, for all tests.
kf.register_array_type(Word, lambda word: word.keys)


@pytest.fixture(scope="session")
def word():
    """The class `Word`: `word(text, *keys)` counts as a tensor with exactly these keys."""
    return Word


@pytest.fixture
def d():
    """A dispatcher of the test's own."""
    return kf.Dispatcher()


@pytest.fixture
def ns():
    """A namespace of the process's dispatcher that no other test uses."""
    return f"t{next(_counter)}"


@pytest.fixture
def lib(ns):
    """A library in such a namespace, closed after the test."""
    library = kf.Library(ns)
    yield library
    library.close()


@pytest.fixture
def seen():
    """For what a kernel notes of its calls."""
    return []


@pytest.fixture(scope="session")
def npu():
    """The test backend."""
    return kf.register_backend("npu")


@pytest.fixture
def npu_backend(npu):
    """The backend of examples/backend.py, on "npu" for the time of a test."""
    spec = importlib.util.spec_from_file_location("example_backend", EXAMPLES / "backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handle = kf.register_backend("npu", module.Npu())
    yield handle
    handle.remove()


@pytest.fixture(scope="session")
def audit():
    """A mode of the user's own, above Autograd."""
    return kf.register_key("TestAudit", above="Autograd", skippable=True)


@pytest.fixture(scope="session")
def ragged():
    """A representation of the user's own, above Sparse."""
    return kf.register_key("TestRagged", above="Sparse")


@pytest.fixture(scope="session")
def testing():
    """Native kernels for tests: `keyfold_testing::{identity, fresh, identity_nogil, panics}`."""
    kf._core._register_testing_kernels()
    return kf.ops.keyfold_testing


@pytest.fixture
def native_layer():
    """Registers a native layer at a key: `native_layer(key, replace=False)`."""
    handles = []

    def register(key, *, replace=False):
        handles.append(kf._core._register_testing_layer(key, replace))
        return handles[-1]

    yield register
    for handle in reversed(handles):
        handle.remove()


@pytest.fixture(scope="session")
def c_library(tmp_path_factory):
    """The path of examples/native/scale.c as a shared library."""
    source = EXAMPLES / "native" / "scale.c"
    return compile_c(source, tmp_path_factory.mktemp("native") / "libscale.so")


@pytest.fixture
def make(lib, ns):
    """`make(schema, kernel, **kernels)`: an operator of that schema in a namespace of its own."""

    def make(schema, kernel, **kernels):
        lib.define(schema)
        name = schema.split("(")[0]
        lib.impl(name, kernel, "CPU")
        for key, other in kernels.items():
            lib.impl(name, other, key)
        return kf.get_op(f"{ns}::{name}")

    return make


@pytest.fixture
def raises_saying():
    """`with raises_saying(kf.Error, "part", ...)`: an exception whose text has all these parts."""
    return RaisesSaying


class RaisesSaying:
    """As `pytest.raises`, and checks that the message has every one of `parts`."""

    def __init__(self, kind, *parts):
        self.kind = kind
        self.parts = parts
        self.value = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        assert kind is not None, f"{self.kind.__name__} wasn't raised"
        if not issubclass(kind, self.kind):
            return False
        self.value = error
        for part in self.parts:
            assert part in str(error), f"{part!r} is missing in: {error}"
        return True


@pytest.fixture
def works_on():
    """Checks at the end that the process's dispatcher still does its job."""
    yield
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(kf.ops.aten.add(a, a), a + a)
    assert not kf.explain("aten::add", a, a).included


@pytest.fixture
def op(lib, ns):
    """Defines an operator with a Python kernel: `op(schema, kernel)`."""

    def define(schema, kernel):
        name = f"{ns}::{schema}"
        lib.define(schema)
        lib.impl(schema.split("(")[0], kernel, "CPU")
        return getattr(getattr(kf.ops, ns), schema.split("(")[0]), name.split("(")[0]

    return define
