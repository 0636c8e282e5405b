"""Ctrl-C, or anything else that a signal handler raises, leaves no `with` block on.

CPython runs handlers where a Python function begins and after calls. These tests raise at each such
place in keyfold's own Python code in turn. A block that begins in Rust has none before its body.
"""

import contextlib
import contextvars
import inspect
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf
from keyfold import _core

PACKAGE = str(Path(kf.__file__).parent)
X = np.ones(1)


class Interrupt(BaseException):
    """An exception that no code expects, as KeyboardInterrupt is."""


def interrupt(use, number):
    """Call `use` and raise at that place in keyfold's code; whether there was such a one."""
    left = number

    def trace(frame, event, _):
        nonlocal left
        code = frame.f_code
        # An exception in a generator that is being collected goes no further.
        ours = code.co_filename.startswith(PACKAGE) and not code.co_flags & inspect.CO_GENERATOR
        if ours and event in ("call", "return", "c_return"):
            left -= 1
            if left == -1:
                raise Interrupt

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        use()
    except Interrupt:
        pass
    finally:
        sys.setprofile(before)
    return left < 0


def no_keys():
    explanation = kf.explain("aten::neg", X)
    return not explanation.included and not explanation.excluded


def block(make):
    def use():
        with make():
            pass

    return use


def nothing():
    pass


async def later():
    pass


def run(coroutine):
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


# Uses, and checks that nothing stays switched on. Each runs in a context of its own.
USES = {
    "include_keys": (block(lambda: kf.include_keys("Tracer")), no_keys),
    "exclude_keys": (block(lambda: kf.exclude_keys("Tracer")), no_keys),
    "no_grad": (block(kf.no_grad), kf.is_grad_enabled),
    "@no_grad": (lambda: kf.no_grad(nothing)(), kf.is_grad_enabled),
    "@no_grad, async": (lambda: run(kf.no_grad(later)()), kf.is_grad_enabled),
    "autocast": (block(lambda: kf.autocast("float16")), lambda: not kf.is_autocast_enabled()),
    "@autocast": (
        lambda: kf.autocast("float16")(nothing)(),
        lambda: not kf.is_autocast_enabled(),
    ),
    "profile": (block(kf.profile), no_keys),
    "grad": (
        lambda: kf.grad(lambda x: x * x)(1.0),
        lambda: no_keys() and not _core._is_differentiated(),
    ),
    "trace": (lambda: kf.trace(kf.exp, X), lambda: no_keys() and not _core._is_tracing()),
    "vmap": (
        lambda: kf.vmap(kf.exp)(X),
        lambda: no_keys() and _core._VmapFrame(1, "error").level == 1,
    ),
    "checkpoint": (lambda: kf.checkpoint(kf.exp, kf.ones(2)), no_keys),
}


@pytest.mark.parametrize("name", USES)
def test_an_interrupt_leaves_nothing_on(name):
    use, off = USES[name]

    def once(number):
        raised = interrupt(use, number)
        assert off(), f"left on by an interrupt at place {number}"
        return raised

    use()
    for number in itertools.count():
        if not contextvars.copy_context().run(once, number):
            break


def test_an_interrupted_profile_is_closed():
    profile = kf.profile()

    def use():
        with profile, profile.range("step"):
            pass

    for number in itertools.count():
        raised = interrupt(use, number)
        assert not profile.is_open
        if not raised:
            break


def test_an_interrupted_range_is_closed():
    with kf.profile() as profile:
        for number in itertools.count():
            raised = interrupt(block(lambda: kf.profile_range("inner")), number)
            with kf.profile_range("after"):
                pass
            if not raised:
                break
    after = [event for event in profile.events if event["name"] == "after"]
    assert len(after) == number + 1
    assert {event["depth"] for event in after} == {0}


def test_an_interrupted_library_block_collects_no_more():
    for number in itertools.count():
        d = kf.Dispatcher()
        library = kf.Library("interrupted", dispatcher=d)

        def use(library=library):
            with library:
                library.define("f(Tensor x) -> Tensor")

        raised = interrupt(use, number)
        # It acts at once again, and nothing that the block collected is left for the next one.
        handle = library.define("g(Tensor x) -> Tensor")
        assert handle.active
        with library:
            pass
        # Each registration has its handle.
        library.close()
        for name in ("f", "g"):
            with pytest.raises(kf.UnknownOperator):
                d.get_op(f"interrupted::{name}")
        if not raised:
            break


def test_an_interrupted_switch_gives_the_kernel_back(ns):
    @kf.custom_op(f"{ns}::scale", mutates_args=())
    def scale(x: kf.Tensor) -> kf.Tensor:
        return x * 2.0

    with scale:
        scale.register_kernel("cpu", lambda x: x * 3.0)

        def use():
            with scale.set_kernel_enabled("cpu", False):
                assert scale(kf.ones(1)).item() == 2.0

        for number in itertools.count():
            raised = interrupt(use, number)
            assert scale(kf.ones(1)).item() == 3.0
            if not raised:
                break


def test_a_switch_decorates_and_is_one_block_at_a_time(ns):
    @kf.custom_op(f"{ns}::scale", mutates_args=())
    def scale(x: kf.Tensor) -> kf.Tensor:
        return x * 2.0

    with scale:
        scale.register_kernel("cpu", lambda x: x * 3.0)
        switch = scale.set_kernel_enabled("cpu", False)

        @switch
        def call(depth):
            return call(depth - 1) if depth else scale(kf.ones(1)).item()

        assert call(2) == 2.0
        with switch, pytest.raises(kf.GuardError, match="in a with block already"), switch:
            pass
        with pytest.raises(kf.GuardError, match="no with block to leave"):
            switch.__exit__(None, None, None)
        assert scale(kf.ones(1)).item() == 3.0
