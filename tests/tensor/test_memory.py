"""The memory that is kept for the next tensors: reuse, bound, numbers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import keyfold as kf

MIB = 1 << 20
KEYS = ["allocated", "live", "cached", "peak", "hits", "misses", "returned", "limit"]


@pytest.fixture(autouse=True)
def limit():
    """A limit of 256 MiB and an empty cache; afterwards the limit that was."""
    before = kf.memory_stats()["limit"]
    kf.set_cache_limit(256 * MIB)
    gc.collect()
    kf.trim_memory()
    yield
    kf.set_cache_limit(before)


def test_the_numbers_have_their_names_and_add_up():
    kept = kf.zeros(3 * MIB, dtype=kf.uint8)
    stats = kf.memory_stats()
    assert list(stats) == KEYS
    assert all(type(number) is int for number in stats.values())
    assert stats["allocated"] == stats["live"] + stats["cached"]
    assert stats["peak"] >= stats["allocated"]
    assert stats["limit"] == 256 * MIB
    del kept


def test_memory_of_a_freed_tensor_is_used_again():
    x = kf.empty(20 * MIB, dtype=kf.uint8)
    del x
    before = kf.memory_stats()
    x = kf.empty(20 * MIB, dtype=kf.uint8)
    after = kf.memory_stats()
    assert after["hits"] == before["hits"] + 1
    assert after["misses"] == before["misses"]
    assert before["cached"] - after["cached"] == 20 * MIB == after["live"] - before["live"]
    del x


def test_zeros_are_zero_in_memory_that_was_used():
    for size in (100, 5000, 3 * MIB):
        x = kf.full(size, 255, dtype=kf.uint8)
        del x
        assert not np.asarray(kf.zeros(size, dtype=kf.uint8)).any()


def test_an_array_that_shares_memory_keeps_it_and_gives_it_back_on_any_thread():
    x = kf.ones(8 * MIB, dtype=kf.uint8)
    array = np.asarray(x)
    del x
    assert kf.memory_stats()["cached"] == 0
    boxed = [array]
    del array
    thread = threading.Thread(target=boxed.clear)
    thread.start()
    thread.join()
    assert kf.memory_stats()["cached"] == 8 * MIB


def test_trimming_gives_back_what_is_kept():
    x = kf.zeros(4 * MIB, dtype=kf.uint8)
    del x
    cached = kf.memory_stats()["cached"]
    assert cached >= 4 * MIB
    assert kf.trim_memory() == cached
    assert kf.memory_stats()["cached"] == 0


def test_no_more_than_the_limit_is_kept():
    kf.set_cache_limit(10 * MIB)
    tensors = [kf.zeros(2 * MIB, dtype=kf.uint8) for _ in range(20)]
    tensors.clear()
    stats = kf.memory_stats()
    assert 0 < stats["cached"] <= stats["limit"] == 10 * MIB
    kf.set_cache_limit(0)
    assert kf.memory_stats()["cached"] == 0
    assert float(kf.sum(kf.ones(MIB))) == MIB


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-1, kf.InvalidValue, "'limit' is -1; it must be a number of bytes"),
        (2**64, kf.InvalidValue, "'limit' is 18446744073709551616"),
        (1.5, kf.BindingError, "'limit' must be an int, not float"),
        ("1G", kf.BindingError, "'limit' must be an int, not str"),
    ],
)
def test_a_wrong_limit_is_an_error_that_names_it(value, error, text):
    with pytest.raises(error, match=text):
        kf.set_cache_limit(value)
    assert kf.memory_stats()["limit"] == 256 * MIB


def test_memory_that_cannot_be_had_is_an_error_with_the_size():
    with pytest.raises(kf.OutOfMemory, match=str(1 << 47)) as raised:
        kf.empty(1 << 47, dtype=kf.uint8)
    assert isinstance(raised.value, MemoryError)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("0", "0"),
        ("1048576", "1048576"),
        ("1G", "the environment variable KEYFOLD_CACHE_BYTES is '1G'"),
        ("-5", "the environment variable KEYFOLD_CACHE_BYTES is '-5'"),
    ],
)
def test_the_environment_sets_the_limit(text, printed):
    code = """
import keyfold as kf
try:
    kf.zeros(10_000)
    print(kf.memory_stats()["limit"])
except kf.InvalidValue as error:
    print(error)
    kf.set_cache_limit(7)
    kf.zeros(10_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KEYFOLD_CACHE_BYTES": text},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
