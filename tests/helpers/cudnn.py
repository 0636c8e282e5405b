"""The real libcudnn in tests: where it isn't, they say by name that they were left out."""

import functools
import os

import pytest

import keyfold as kf
from keyfold import _core
from keyfold.cudnn import _library


@functools.cache
def unusable():
    """Why libcudnn plans nothing here; None where it does. It starts the helper process."""
    try:
        _core._cudnn_helpers(_library.base())
    except kf.LibraryLoadError as error:
        return str(error)
    return None


def need(what):
    """The libcudnn that is used; without one the test is skipped, or fails where CI asks for it."""
    why = unusable()
    if why is None:
        return str(_core._cudnn_libraries(_library.packages())[0][0])
    if os.environ.get("KEYFOLD_REQUIRE_CUDNN") == "1":
        pytest.fail(f"{what} needs libcudnn, and KEYFOLD_REQUIRE_CUDNN is 1: {why}")
    return pytest.skip(f"{what} needs libcudnn: {why}")
