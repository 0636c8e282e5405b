"""Text that is no text, and numbers that no machine word holds: keyfold's errors, not Python's."""

from __future__ import annotations

import numpy as np
import pytest

import keyfold as kf

HALF = "a\ud800b"
HUGE = 2**70


def nothing(*args):
    return args


def staged(schema, kernel, name="f"):
    with kf.Library("hostile") as library:
        library.define(schema)
        library.impl(name, "CPU", kernel)


TEXTS = {
    "define": lambda d: d.define(HALF),
    "define, in a name": lambda d: d.define(f"demo::{HALF}(Tensor x) -> Tensor"),
    "implement": lambda d: d.impl(HALF, "CPU", nothing),
    "implement, key": lambda d: d.impl("demo::f", HALF, nothing),
    "implement, override": lambda d: d.impl("demo::f", "CPU", nothing, override=HALF),
    "fallback": lambda d: d.fallback("CPU", nothing, override=HALF),
    "register": lambda d: d.register(HALF, "CPU", nothing),
    "call": lambda d: d.call(HALF),
    "register_key": lambda _: kf.register_key(HALF, above="CPU"),
    "register_backend": lambda _: kf.register_backend(HALF),
    "register_autocast": lambda _: kf.register_autocast("aten::add", HALF),
    "register_autocast, override": lambda _: kf.register_autocast(
        "aten::add", "fp32", override=HALF
    ),
    "elementwise": lambda _: kf.elementwise("demo::g(Tensor x) -> Tensor", HALF),
    "elementwise, name": lambda _: kf.elementwise(HALF, "x + 1"),
    "Expression": lambda _: kf.Expression(HALF),
    "Library": lambda _: kf.Library(HALF),
    "Library, define": lambda _: kf.Library("hostile").define(HALF),
    "Library, staged": lambda _: staged(HALF, nothing),
    "Library, staged name": lambda _: staged("f(Tensor x) -> Tensor", nothing, HALF),
    "DispatchKey": lambda _: kf.DispatchKey(HALF),
    "load_plugin": lambda _: kf.load_plugin(HALF),
    "NativeKernel": lambda _: kf.NativeKernel(1, tensors=HALF),
    "NativeKernel.from_library": lambda _: kf.NativeKernel.from_library("lib.so", HALF),
    "NativeKernel.from_library, path": lambda _: kf.NativeKernel.from_library(HALF, "f"),
    "Device": lambda _: kf.Device(HALF),
    "dtype": lambda _: kf.zeros((1,), dtype=HALF),
    "device": lambda _: kf.zeros((1,), device=HALF),
    "profile.table": lambda _: kf.profile().table(sort=HALF),
    "array namespace": lambda _: kf.zeros((1,)).__array_namespace__(api_version=HALF),
    "ops": lambda _: kf.ops.aten.add(np.ones(1), np.ones(1), **{HALF: 1}),
}


@pytest.mark.parametrize("place", TEXTS)
def test_half_of_a_surrogate_pair_is_refused(place, d):
    d.define("demo::f(Tensor x) -> Tensor")
    with pytest.raises(kf.Error) as raised:
        TEXTS[place](d)
    assert not isinstance(raised.value, UnicodeError)
    assert str(raised.value).encode()


x = np.ones((2, 3))

NUMBERS = {
    "softmax": lambda n: kf.asarray(x).softmax(n),
    "sum": lambda n: kf.ops.aten.sum(x, n),
    "reshape": lambda n: kf.ops.aten.reshape(x, [n]),
    "zeros": lambda n: kf.zeros((n,)),
    "index": lambda n: kf.asarray(x)[n],
    "Device": lambda n: kf.Device(f"cuda:{n}"),
    "profile.table": lambda n: kf.profile().table(limit=n),
    "set_num_threads": lambda n: kf.set_num_threads(n),
    "set_cache_limit": lambda n: kf.set_cache_limit(n),
    "NativeKernel.from_address": lambda n: kf.NativeKernel.from_address(1, handle=n),
    "alpha": lambda n: kf.ops.aten.add(np.ones(2, int), np.ones(2, int), alpha=n),
}


@pytest.mark.parametrize("number", [HUGE, -HUGE])
@pytest.mark.parametrize("place", NUMBERS)
def test_a_number_that_no_word_holds_is_refused(place, number):
    with pytest.raises(kf.Error) as raised:
        NUMBERS[place](number)
    assert not isinstance(raised.value, OverflowError)
