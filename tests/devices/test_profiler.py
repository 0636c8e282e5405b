"""The profiler's time on devices that work late: events around each call, read with the profile."""

import json

import numpy as np
import pytest

import keyfold as kf
from keyfold.testing import delayed_device

# The duration of an operation by the delayed device's own clock.
OPERATION = 1e-6


@pytest.fixture
def late():
    with delayed_device("late", streams=2) as device:
        yield device


def times(profile):
    return [(event["name"], event["device_time"]) for event in profile.events]


def test_calls_have_the_time_of_their_operations(late):
    x = kf.asarray([1.0, 2.0]).to(late.devices[1])
    with kf.profile() as p:
        kf.ops.aten.exp(x)
        kf.ops.aten.sum(x)
        kf.ops.aten.transpose(kf.ops.aten.reshape(x, [1, 2]), 0, 1)
    exp, total, *views = times(p)
    assert exp == ("aten::exp", pytest.approx(OPERATION))
    assert total == ("aten::sum", pytest.approx(OPERATION))
    assert [time for _, time in views] == [0.0] * len(views)


def test_calls_wait_for_nothing(late):
    x = kf.asarray([1.0, 2.0]).to(late.devices[0])
    kf.synchronize()
    before = {call: late.count(call) for call in ("run", "synchronize", "download", "record")}
    with kf.profile() as p:
        for _ in range(10):
            x = kf.ops.aten.exp(x)
    after = {call: late.count(call) - count for call, count in before.items()}
    assert after == {"run": 0, "synchronize": 0, "download": 0, "record": 20}
    assert [time for _, time in times(p)] == [pytest.approx(OPERATION)] * 10
    assert late.count("run") - before["run"] == 10
    # Read once, and kept.
    assert len(times(p)) == 10
    assert late.count("run") - before["run"] == 10


def test_table_trace_and_repr_show_it(late):
    x = kf.asarray([1.0, 2.0]).to(late.devices[0])
    with kf.profile() as p, p.range("step"):
        for _ in range(3):
            kf.ops.aten.exp(x)
        kf.ops.aten.exp(np.ones(2))
    table = p.table(sort="device")
    column = table.heads.index("device")
    shown = {(row[0], row[1]): row[column] for row in table.rows}
    assert shown == {
        ("aten::exp", "LATE"): "3.00 us",
        ("aten::exp", "CPU"): "",
        ("step", "(range)"): "",
    }
    assert table.rows[0][1] == "LATE"
    assert ", 3.00 us on devices, " in str(table)
    assert repr(p).endswith(", 0.003 ms on devices)>")
    args = [event["args"] for event in p.chrome_trace()["traceEvents"] if event["ph"] == "X"]
    assert [arg.get("device us") for arg in args] == [None, 1.0, 1.0, 1.0, None]
    json.dumps(p.events)


def test_nothing_is_shown_where_no_device_works_late():
    class Adds:
        def pointwise(self, name, inputs, out):
            out[...] = inputs[0] + inputs[1]

        def synchronize(self, index):
            waited.append(index)

    waited = []
    handle = kf.register_backend("npu", Adds())
    try:
        x = kf.asarray([1.0, 2.0]).to("npu")
        waited.clear()
        with kf.profile() as p:
            x + x
            kf.ops.aten.exp(np.ones(2))
        assert waited == []
    finally:
        handle.remove()
    assert {event["device_time"] for event in p.events} == {None}
    assert "device" not in p.table().heads
    assert "on devices" not in str(p.table()) + repr(p)


def test_what_calls_make_others_do_is_counted_once(late):
    x = kf.asarray([[1.0, 2.0]]).to(late.devices[0]).requires_grad_()
    with kf.profile(nested=True) as p:
        kf.ops.aten.mul(x, x)
    outer = [event for event in p.events if event["parent"] is None]
    inner = [event for event in p.events if event["parent"] is not None]
    assert sum(event["device_time"] for event in outer) == pytest.approx(OPERATION)
    assert repr(p).endswith(", 0.001 ms on devices)>")
    assert all(event["device_time"] <= outer[0]["device_time"] for event in inner)


def test_a_call_that_fails_has_no_time_and_a_fault_of_an_event_fails_no_call(late, raises_saying):
    x = kf.asarray([0.5, 0.25]).to(late.devices[0])
    with kf.profile() as p:
        with raises_saying(kf.ShapeError):
            kf.ops.aten.add(x, kf.ones(3, device=late.devices[0]))
        late.fail_at(1, "record")
        y = kf.ops.aten.exp(x)
        late.fail_at(2, "record")
        y = kf.ops.aten.exp(y)
        y = kf.ops.aten.exp(y)
    named = [time for name, time in times(p) if name != "aten::ones"]
    assert named == [None, None, None, pytest.approx(OPERATION)]
    assert y.tolist() == kf.exp(kf.exp(kf.exp(kf.asarray([0.5, 0.25])))).tolist()


def test_a_profile_is_read_after_its_device_is_gone():
    with delayed_device("late") as late:
        x = kf.asarray([1.0]).to(late.devices[0])
        with kf.profile() as p:
            kf.ops.aten.exp(x)
    assert times(p) == [("aten::exp", pytest.approx(OPERATION))]


def test_layers_and_copies_are_timed(late):
    with kf.profile() as p:
        x = kf.ones((2, 2), device=late.devices[0]).requires_grad_()
        ((x @ x).sum() * 2).backward()
        x.grad.cpu()
    seen = dict(times(p))
    assert seen["aten::matmul"] == pytest.approx(OPERATION)
    assert seen["aten::to.device"] == pytest.approx(0.0)
    assert None not in seen.values()
