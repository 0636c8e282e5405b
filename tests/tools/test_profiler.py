"""The profiler: what it records, where, how it is shown, and blocks that are used wrongly."""

import asyncio
import contextvars
import json
import threading

import numpy as np
import pytest

import keyfold as kf

X = np.ones((2, 3), dtype=np.float32)


def names(p):
    return [event["name"] for event in p.events]


# Recorded events


def test_one_event_per_outer_call_with_shapes_dtypes_bytes_and_keys():
    w = kf.asarray(X).requires_grad_()
    with kf.profile() as p:
        kf.ops.aten.mul(w, X)
        kf.ops.aten.stack([X, X])
    mul, stack = p.events
    assert (mul["name"], mul["kind"], mul["keys"]) == ("aten::mul", "call", "Autograd > CPU")
    assert mul["args"] == ["float32[2, 3]", "float32[2, 3]"]
    assert mul["shapes"] == [(2, 3), (2, 3)]
    assert (mul["bytes_in"], mul["bytes_out"]) == (48, 24)
    assert stack["bytes_out"] == 48
    assert mul["allocated"] >= 24
    assert not mul["failed"]
    assert (mul["depth"], mul["parent"]) == (0, None)
    assert 0 <= mul["start"] <= mul["start"] + mul["duration"] <= stack["start"] <= p.total_time


@pytest.fixture
def composite():
    handle = kf.define("profiler_test::twice(Tensor x) -> Tensor")

    @kf.impl("profiler_test::twice", "CPU")
    def twice(x):
        return kf.ops.aten.add(kf.ops.aten.exp(x), x)

    yield kf.ops.profiler_test.twice
    handle.remove()


def test_inner_calls_belong_to_their_caller_unless_nested(composite):
    with kf.profile() as p:
        composite(X)
    assert names(p) == ["profiler_test::twice"]
    with kf.profile(nested=True) as p:
        composite(X)
    assert names(p) == ["profiler_test::twice", "aten::exp", "aten::add"]
    outer, first, second = p.events
    assert (first["parent"], second["parent"]) == (0, 0)
    assert first["path"] == ["profiler_test::twice", "aten::exp"]
    inner = first["duration"] + second["duration"]
    assert outer["self_time"] == pytest.approx(outer["duration"] - inner, abs=1e-8)


def test_a_call_that_fails_is_an_event_and_its_exception_stays():
    with kf.profile() as p, pytest.raises(kf.ShapeError):
        kf.ops.aten.add(np.ones(2), np.ones(3))
    assert [event["failed"] for event in p.events] == [True]
    with pytest.raises(kf.DTypeError), kf.profile() as p:
        kf.ops.aten.exp(np.array(["text"]))
    assert not p.is_open


def test_memory_can_be_left_out():
    with kf.profile(memory=False) as p:
        kf.ops.aten.exp(X)
    assert p.events[0]["allocated"] == 0
    assert "allocated" not in p.table().heads


def test_an_array_reaches_a_python_kernel_as_it_is():
    handle = kf.define("profiler_test::look(Tensor x) -> Tensor")
    seen = []

    @kf.impl("profiler_test::look", "CPU")
    def look(x):
        seen.append(x)
        return x

    with kf.profile():
        assert kf.ops.profiler_test.look(X) is X
    assert seen[0] is X
    handle.remove()


def test_nothing_is_recorded_outside_of_the_block():
    p = kf.profile()
    kf.ops.aten.exp(X)
    assert p.events == []
    with p:
        kf.ops.aten.exp(X)
    kf.ops.aten.exp(X)
    assert len(p.events) == 1
    with p:
        kf.ops.aten.log(X)
    assert names(p) == ["aten::exp", "aten::log"]


# Ranges


def test_ranges_are_events_around_calls():
    @kf.profile_range("decorated")
    def f():
        return kf.ops.aten.log(X)

    with kf.profile() as p:
        with p.range("outer"), kf.profile_range("inner"):
            kf.ops.aten.exp(X)
        f()
    assert names(p) == ["outer", "inner", "aten::exp", "decorated", "aten::log"]
    assert p.events[2]["path"] == ["outer", "inner", "aten::exp"]
    assert [event["kind"] for event in p.events] == ["range", "range", "call", "range", "call"]
    assert f() is not None
    assert len(p.events) == 5


def test_a_range_of_a_closed_profile_is_an_error():
    p = kf.profile()
    with pytest.raises(kf.GuardError, match="isn't open"), p.range("x"):
        pass
    with pytest.raises(TypeError, match="name is a str"):
        kf.profile_range(3)


def test_a_range_that_an_exception_leaves_has_failed():
    with kf.profile() as p:
        with pytest.raises(kf.ShapeError), p.range("outer"), kf.profile_range("inner"):
            kf.ops.aten.add(np.ones(2), np.ones(3))
        with p.range("after"):
            pass
    failed = {event["name"]: event["failed"] for event in p.events}
    assert failed == {"outer": True, "inner": True, "aten::add": True, "after": False}
    marked = [e["name"] for e in p.chrome_trace()["traceEvents"] if e.get("args", {}).get("failed")]
    assert sorted(marked) == ["aten::add", "inner", "outer"]


def test_a_name_that_is_no_text_is_refused():
    with kf.profile() as p:
        for make in (p.range, kf.profile_range):
            with pytest.raises(kf.InvalidValue, match=r"range's name.*'\\ud83d'.*surrogate"):
                make("\ud83d")
    assert p.events == []


# Nested, overlapping and cross-thread blocks


def test_of_two_profiles_the_innermost_records():
    with kf.profile() as outer:
        kf.ops.aten.exp(X)
        with kf.profile() as inner:
            kf.ops.aten.log(X)
        kf.ops.aten.sqrt(X)
    assert names(outer) == ["aten::exp", "aten::sqrt"]
    assert names(inner) == ["aten::log"]


def test_a_profile_is_open_once_at_a_time():
    p = kf.profile()
    with p:
        with pytest.raises(kf.GuardError, match="open already"):
            p.__enter__()
        kf.ops.aten.exp(X)
    assert names(p) == ["aten::exp"]
    with pytest.raises(kf.GuardError, match="without being open"):
        p.__exit__(None, None, None)


def test_blocks_closed_out_of_order_are_an_error():
    first, second = kf.profile(), kf.profile()
    first.__enter__()
    second.__enter__()
    with pytest.raises(kf.GuardError, match="out of order"):
        first.__exit__(None, None, None)
    kf.ops.aten.exp(X)
    second.__exit__(None, None, None)
    assert names(second) == ["aten::exp"]
    assert (first.is_open, second.is_open) == (False, False)
    kf.ops.aten.exp(X)
    assert (len(first.events), len(second.events)) == (0, 1)


def test_a_block_closed_on_another_thread_is_an_error_and_stays_open():
    p = kf.profile()
    errors = []

    def close():
        try:
            p.__exit__(None, None, None)
        except kf.GuardError as error:
            errors.append(str(error))

    with p:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert p.is_open
        kf.ops.aten.exp(X)
    assert "another thread" in errors[0]
    assert names(p) == ["aten::exp"]


def test_other_threads_take_part_only_if_they_attach():
    with kf.profile() as p:
        context = contextvars.copy_context()

        def attached():
            with p.attach():
                kf.ops.aten.log(X)

        for work in (
            lambda: kf.ops.aten.sqrt(X),
            attached,
            lambda: context.run(kf.ops.aten.neg, X),
        ):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        kf.ops.aten.exp(X)
    assert names(p) == ["aten::log", "aten::neg", "aten::exp"]
    assert len({event["thread"] for event in p.events}) == 3
    with pytest.raises(kf.GuardError, match="isn't open"):
        p.attach()


def test_tasks_follow_their_context():
    async def work(op):
        await asyncio.sleep(0)
        op(X)

    async def main():
        outside = asyncio.create_task(work(kf.ops.aten.sqrt))
        with kf.profile() as p:
            inside = asyncio.create_task(work(kf.ops.aten.exp))
            await asyncio.gather(outside, inside)
        return p

    assert names(asyncio.run(main())) == ["aten::exp"]


def test_ranges_of_tasks_that_take_turns_are_each_tasks_own():
    step = kf.profile_range("step")

    async def work(op, turns):
        with step:
            for _ in range(turns):
                await asyncio.sleep(0)
            op(X)

    @kf.profile_range("main")
    async def main():
        await asyncio.gather(work(kf.ops.aten.exp, 1), work(kf.ops.aten.log, 3))

    with kf.profile() as p:
        asyncio.run(main())
    assert names(p) == ["main", "step", "step", "aten::exp", "aten::log"]
    assert [event["path"] for event in p.events[3:]] == [
        ["main", "step", "aten::exp"],
        ["main", "step", "aten::log"],
    ]
    assert p.events[3]["parent"] != p.events[4]["parent"]
    # The two steps overlap, so they can't be on one track.
    steps = [e for e in p.chrome_trace()["traceEvents"] if e["name"] == "step"]
    assert len({event["tid"] for event in steps}) == 2


def test_a_range_closed_where_it_was_not_opened_is_an_error():
    step = kf.profile_range("step")
    with pytest.raises(kf.GuardError, match="without being open"):
        step.__exit__(None, None, None)
    with kf.profile() as p:
        step.__enter__()
        other = threading.Thread(target=lambda: errors.append(close_it(step)))
        errors = []
        other.start()
        other.join()
        assert "another thread" in errors[0]
        step.__exit__(None, None, None)
        step.__enter__()
        with kf.exclude_keys("Autograd"), pytest.raises(kf.GuardError, match="profile_range"):
            step.__exit__(None, None, None)
    assert names(p) == ["step", "step"]
    with step:
        pass
    assert len(p.events) == 2


def close_it(block):
    try:
        block.__exit__(None, None, None)
    except kf.GuardError as error:
        return str(error)
    return "closed"


def test_a_closed_profile_can_go_on():
    p = kf.profile()
    for op in (kf.ops.aten.exp, kf.ops.aten.log):
        with p:
            op(X)
        op(X)
    assert names(p) == ["aten::exp", "aten::log"]


def test_an_exception_closes_the_profile_and_its_ranges():
    p = kf.profile()

    def fails():
        with p, p.range("step"):
            kf.ops.aten.exp(X)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (p.is_open, names(p)) == (False, ["step", "aten::exp"])
    kf.ops.aten.exp(X)
    assert len(p.events) == 2


def test_threads_have_their_names():
    with kf.profile() as p:

        def work():
            with p.attach():
                kf.ops.aten.exp(X)

        thread = threading.Thread(target=work, name="loader")
        kf.ops.aten.exp(X)
        thread.start()
        thread.join()
    assert [e["thread_name"] for e in p.events] == [threading.current_thread().name, "loader"]
    named = [e for e in p.chrome_trace()["traceEvents"] if e["name"] == "thread_name"]
    assert {e["args"]["name"] for e in named} == {threading.current_thread().name, "loader"}


def test_a_profile_that_no_call_can_reach_says_why_it_is_empty():
    with kf.exclude_keys("Profiler"), kf.profile() as p:
        kf.ops.aten.exp(X)
    assert p.events == []
    assert "is excluded" in str(p.table())


def test_arrays_that_cannot_be_viewed_have_no_shape():
    class Opaque:
        pass

    kf.register_array_type(Opaque, "CPU")
    with kf.Dispatcher(layers=True) as d:
        d.define("t::f(Tensor x, Tensor y) -> Tensor")
        d.impl("t::f", "CPU", lambda x, y: x)
        opaque = Opaque()
        with kf.profile() as p:
            assert d.ops.t.f(opaque, X) is opaque
    (event,) = p.events
    assert event["args"] == ["?", "float32[2, 3]"]
    assert event["bytes_in"] == 24


def test_an_open_profile_can_be_read():
    with kf.profile() as p:
        kf.ops.aten.exp(X)
        assert "still open" in str(p.table())
        assert names(p) == ["aten::exp"]
    assert "still open" not in str(p.table())


# Tables and traces


@pytest.fixture(scope="module")
def recorded():
    with kf.profile(nested=True) as p:
        for _ in range(3):
            with p.range("step"):
                kf.ops.aten.exp(X)
                kf.ops.aten.dropout(X, 0.5)
    return p


def test_the_table_is_sorted_and_limited(recorded):
    table = recorded.table()
    assert table.heads[:2] == ["operator", "keys"]
    shares = [float(row[6].split()[0]) for row in table.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=1)
    by_name = recorded.table("operator", None)
    assert [row[0] for row in by_name.rows] == sorted(row[0] for row in by_name.rows)
    assert len(recorded.table(limit=2)) == 2
    assert "more row" in str(recorded.table(limit=2))
    with pytest.raises(ValueError, match='"self"'):
        recorded.table("nonsense")


def test_the_chrome_trace_keeps_the_formats_rules(recorded, tmp_path):
    recorded.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert trace == recorded.chrome_trace()
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "M", "C"}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(recorded.events)
    for event in events:
        assert {"name", "ph", "pid"} <= set(event)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    # Events of one thread nest: each begins and ends inside the one around it, or after it.
    open_until = []
    for event in sorted(complete, key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)
    exp = next(event for event in complete if event["name"] == "aten::exp")
    assert "float32[2, 3]" in json.dumps(exp["args"])


def test_a_profile_says_what_it_is(recorded):
    assert repr(recorded).startswith("<profile (closed, ")
    assert "aten::exp" in str(recorded.table())
