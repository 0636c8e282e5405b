"""Fixtures of the tests that plan with libcudnn, or with a program in its helper's place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import keyfold as kf
from tests.cudnn import planning
from tests.helpers.cudnn import need


@pytest.fixture(scope="session")
def libcudnn() -> str:
    """The libcudnn that is used; without one the test is skipped, or fails where CI asks for it."""
    return need("this test")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which plans are kept for the time of a test."""
    before, limit = kf.cudnn.plan_cache.folder, kf.cudnn._library.plans.limit
    kf.cudnn.plan_cache.clear()
    kf.cudnn.plan_cache.keep_in(tmp_path / "plans")
    yield tmp_path / "plans"
    kf.cudnn.plan_cache.keep_in(before, limit)
    kf.cudnn.plan_cache.clear()


@pytest.fixture
def no_folder() -> Iterator[None]:
    """Plans aren't kept for the time of a test."""
    before, limit = kf.cudnn.plan_cache.folder, kf.cudnn._library.plans.limit
    kf.cudnn.plan_cache.clear()
    kf.cudnn.plan_cache.keep_in(None)
    yield
    kf.cudnn.plan_cache.keep_in(before, limit)
    kf.cudnn.plan_cache.clear()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how long helpers may say nothing, in milliseconds: others than the usual ones."""
    return lambda time: monkeypatch.setattr(kf.cudnn._library.plans, "patience", time)


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs another program, with arguments, in the helper's place."""
    return lambda *program: planning.use(monkeypatch, [str(word) for word in program])


@pytest.fixture
def stand_in(
    helper: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Runs stand_in.py in a way of its own in the helper's place; no libcudnn has to be there."""
    library = tmp_path / "libcudnn.so.9"
    library.write_text("the stand-in loads none")
    monkeypatch.setenv("KEYFOLD_CUDNN_LIBRARY", str(library))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Packages are a part of what pools of helpers are told apart by: each test has one of its own.
    monkeypatch.setattr(kf.cudnn._library, "packages", lambda: [str(tmp_path)])
    return lambda how: helper(sys.executable, "-S", planning.STAND_IN, how)
