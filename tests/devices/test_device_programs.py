"""Random programs on devices that aren't the host: deferred, they have the bits of eager calls."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyfold as kf
from keyfold.testing import delayed_device
from tests.helpers.programs import SHAPES, STEPS, check, program, run

pytestmark = pytest.mark.one_python

ran = Counter()


@pytest.fixture(scope="module")
def late():
    """A device that works late, with hidden memory."""
    with delayed_device("late") as device:
        yield device.devices[1]


@pytest.fixture(scope="module")
def opencl(pocl, opencl_library):
    """pocl, by the example's plugin."""
    with kf.load_plugin(opencl_library):
        yield "opencl"
    print(f"\nsteps of random programs on OpenCL: {dict(ran)}")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program, st.sampled_from([None, "eager"]))
def test_programs_on_a_device_that_works_late(late, steps, how):
    check(steps, late, how)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program)
def test_programs_on_opencl(opencl, steps):
    check(steps, opencl)
    _, errors = run(steps, None, opencl)
    ran["offered"] += len(steps) - len(errors)
    ran["refused"] += len(errors)


def test_opencl_offers_most_steps(opencl):
    """A device that refuses everything would pass the comparison."""
    refused = [name for name in STEPS if run([(name, 1, 1, False)], None, opencl)[1]]
    assert len(refused) < len(STEPS) / 2, refused
    assert run([("add", 1, 1, False)], None, opencl)[0][-1].shape == SHAPES[1]
