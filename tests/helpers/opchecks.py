"""opcheck with its failures returned, and an argument to check with."""

import numpy as np

import keyfold as kf


def check(op, *args, tests=None, **kwargs):
    return kf.opcheck(op, args, kwargs, tests=tests, raise_exception=False)


def failure(op, *args, test):
    """Return the message of the one test, which must have failed."""
    report = check(op, *args, tests=test)
    assert list(report.failures) == [test], report
    return report[test]


def x(*shape):
    shape = shape or (2, 3)
    return np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape) / 4
