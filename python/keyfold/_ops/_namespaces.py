"""`dispatcher.ops.ns.name`: namespaces that look operators up when they are first used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._errors import UnknownOperator
from keyfold._show import _html
from keyfold._show._objects import listing
from keyfold._show._text import folded

__all__ = ["Namespace", "Ops"]


class Namespace:
    """The operators of one namespace, as attributes.

    A name that was looked up is kept in the instance, so that `ops.ns.name` costs what any
    attribute costs. Removing the operator takes it out again. What isn't an operator here has a
    mangled name, since an operator's name may begin with an underscore.
    """

    def __init__(
        self,
        dispatcher: _core.Dispatcher,
        prefix: str,
        provide: Callable[[str], bool] | None = None,
    ) -> None:
        self.__dispatcher = dispatcher
        self.__prefix = prefix
        self.__provide = provide

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        qualified = f"{self.__prefix}{name}"
        packet: Any = self.__dispatcher._packet(qualified)
        if packet is None and self.__provide is not None and self.__provide(qualified):
            packet = self.__dispatcher._packet(qualified)
        if packet is None:
            # Words the error, with the nearest names.
            packet = self.__dispatcher.get_op(qualified)
        setattr(self, name, packet)
        return packet

    def __dir__(self) -> list[str]:
        names = self.__dispatcher.operator_names()
        found = {
            n[len(self.__prefix) :].split(".")[0] for n in names if n.startswith(self.__prefix)
        }
        return sorted(n for n in found if "::" not in n)

    def __iter__(self) -> Any:
        return iter(dir(self))

    def __repr__(self) -> str:
        names = f"<operators of {self.__prefix.rstrip(':') or 'no namespace'}: {', '.join(self)}>"
        return "\n".join(folded([names]))

    def _repr_html_(self) -> str:
        packets = [getattr(self, name) for name in dir(self)]
        operators = [getattr(packet, name) for packet in packets for name in packet.overloads()]
        title = f"Operators of {self.__prefix.rstrip(':')}"
        return _html.page(_html.words(title), listing(operators))


class Ops(Namespace):
    """All namespaces of a dispatcher, and the operators that have none."""

    def __init__(self, dispatcher: _core.Dispatcher) -> None:
        super().__init__(dispatcher, "")
        self.__dispatcher = dispatcher
        self.__provide: Callable[[str], bool] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # An isolated dispatcher has operators without a namespace.
        packet = self.__dispatcher._packet(name)
        found: Any = packet
        if packet is None:
            found = Namespace(self.__dispatcher, f"{name}::", self.__provide)
            if not dir(found) and self.__provide is not None:
                self.__provide(name)
        if packet is None and not dir(found):
            import difflib

            known = sorted({n.split("::")[0] for n in self.__dispatcher.operator_names()})
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownOperator(
                f"no operators in the namespace {name!r}; {hint}there are: {', '.join(known)}"
            )
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        names = self.__dispatcher.operator_names()
        return sorted({n.split("::")[0].split(".")[0] for n in names})

    def __repr__(self) -> str:
        return f"<operators: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        names = self.__dispatcher.operator_names()
        counts = Counter(name.rpartition("::")[0] for name in names)
        rows = [(name or "no namespace", str(count)) for name, count in sorted(counts.items())]
        return _html.page("Operators", _html.table(("namespace", "operators"), rows, (1,)))

    def _look_further(self, provide: Callable[[str], bool]) -> None:
        """Ask for what isn't there: `provide` gets a name, and says whether to look again."""
        self.__provide = provide

    def _forget(self, qualified: str) -> None:
        """Drop what is cached of a name that no longer means what it meant."""
        namespace, _, name = qualified.rpartition("::")
        if not namespace:
            self.__dict__.pop(name, None)
            return
        cached = self.__dict__.get(namespace)
        if cached is not None:
            cached.__dict__.pop(name, None)
            if not dir(cached):
                self.__dict__.pop(namespace, None)

    def _forget_all(self) -> None:
        """Drop everything that is cached: the dispatcher was closed."""
        dispatcher = self.__dispatcher
        self.__dict__.clear()
        self.__init__(dispatcher)  # type: ignore[misc]
