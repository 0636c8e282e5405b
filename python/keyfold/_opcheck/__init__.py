"""`opcheck`: whether an operator keeps what its schema promises, alone and under each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import InvalidValue, OpCheckError
from keyfold._messages import refused
from keyfold._opcheck import _honesty, _layers
from keyfold._opcheck._subject import Failed, Skip, Subject
from keyfold._show import _html, _text

__all__ = ["OpCheckReport", "opcheck"]


_TESTS: dict[str, Callable[[Subject], None]] = {
    "schema": _honesty.schema,
    "layouts": _honesty.layouts,
    "meta": _honesty.meta,
    "autograd": _layers.autograd,
    "vmap": _layers.vmap,
    "autocast": _layers.autocast,
    "trace": _layers.trace,
}


class OpCheckReport(dict[str, str]):
    """What `opcheck` found: from a test's name to `"passed"`, `"skipped: why"` or the failure.

    Attributes:
        operator: the operator's name.
    """

    def __init__(self, operator: str, results: dict[str, str]) -> None:
        super().__init__(results)
        self.operator = operator

    @property
    def failures(self) -> dict[str, str]:
        """The tests that failed, and why."""
        return {
            name: text
            for name, text in self.items()
            if text != "passed" and not text.startswith("skipped: ")
        }

    def _lines(self, width: int = _text.WIDTH) -> list[str]:
        failures = self.failures
        rows = [
            (name, f"FAILED: {text}" if name in failures else text) for name, text in self.items()
        ]
        return [f"opcheck {self.operator}", *_text.pairs(rows, width=width)]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for name, text in self.items():
            if text == "passed":
                rows.append((name, _html.Mark("passed", "good"), ""))
            elif text.startswith("skipped: "):
                rows.append((name, _html.Mark("skipped", "other"), text.removeprefix("skipped: ")))
            else:
                rows.append((name, _html.Mark("FAILED", "bad"), text))
        title = f"opcheck {_html.code(self.operator)}"
        return _html.page(title, _html.table(("test", "result", ""), rows))


def opcheck(
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    tests: str | Iterable[str] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    raise_exception: bool = True,
) -> OpCheckReport:
    """Check that an operator does what its schema says, on example arguments.

    The arguments are copied, so the operator may write to them. The tests:

    - `schema`: it changes no argument that isn't marked `(a!)`, shares memory with arguments and
      among results only where the schema says so, gives a view where it says so, returns what it
      promises, and the same for the same arguments (random numbers are repeated);
    - `layouts`: it gives the same for other strides, and takes arguments without elements or
      dimensions, or refuses them with an error of its own;
    - `meta`: its Meta kernel (`register_fake`) tells shape, dtype and kind of each result;
    - `autograd`: its derivative agrees with finite differences in float64, and so does its rule for
      tangents (`register_jvp`), where it has either;
    - `vmap`: over a batch it gives what a loop gives;
    - `autocast`: it works under `autocast`, and isn't touched where it has no category;
    - `trace`: a trace of the call, run again, gives the same.

    Args:
        op: the operator, one of its packets, its name, or the function `keyfold.NAME` that calls
            it.
        args: the arguments of an example call. Small ones do.
        kwargs: its keyword arguments.
        tests: the names of the tests to run; all of them by default.
        rtol: how far numbers may be apart, as a part of them,
        atol: and in addition.
        raise_exception: False to only report failures.

    Returns:
        A dict from each test's name to `"passed"`, `"skipped: why"` or what failed.

    Raises:
        OpCheckError: a test failed; its `report` has them all.
        UnknownOperator, BindingError: no such operator, or arguments that don't fit.
    """
    if not isinstance(args, (tuple, list)):
        raise refused("opcheck", "args", "the arguments in a tuple, such as (x,)", args)
    given = dict(kwargs or {})
    operator, args, given = find(_default, op, _core._resolved, op, tuple(args), given)
    names = list(_TESTS) if tests is None else [tests] if isinstance(tests, str) else list(tests)
    unknown = [name for name in names if name not in _TESTS]
    if unknown:
        raise InvalidValue(f"no such test: {', '.join(unknown)}; the tests are {', '.join(_TESTS)}")
    state = _core.get_rng_state()
    try:
        subject = Subject(operator, args, given, rtol, atol, state)
        results = {name: _run(_TESTS[name], subject) for name in names}
    finally:
        _core.set_rng_state(state)
    report = OpCheckReport(operator.name, results)
    if report.failures and raise_exception:
        raise OpCheckError(str(report), report)
    return report


def _run(test: Callable[[Subject], None], subject: Subject) -> str:
    try:
        test(subject)
    except Skip as why:
        return f"skipped: {why}"
    except Failed as failure:
        return str(failure)
    return "passed"
