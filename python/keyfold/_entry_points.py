"""Kernels that installed packages offer: the entry-point group `keyfold.kernels`.

A package says in its `pyproject.toml` which namespace it has operators for, and which module
defines them, or which function does:

    [project.entry-points."keyfold.kernels"]
    shop = "shop_kernels.register"        # imported
    shop = "shop_kernels:register"        # imported, and the function called

The module is imported when something of the namespace is asked for that isn't there: `ops.shop`,
`get_op("shop::scale")`. A call of an operator that is there passes none of this, and importing
keyfold looks at no installed package.
"""

from __future__ import annotations

import importlib
import operator
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from keyfold._errors import KernelLoadError, UnknownOperator

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["GROUP", "KernelPackage", "load_kernels", "provide"]

_T = TypeVar("_T")

GROUP = "keyfold.kernels"

# `package.module` or `package.module:attribute`; extras in brackets may follow.
_VALUE = re.compile(
    r"(?P<module>\w+(?:\.\w+)*)\s*(?::\s*(?P<attribute>\w+(?:\.\w+)*))?\s*(?:\[.*)?"
)

# How long a thread waits for another that calls the same package's function, before it says so.
# A cycle of waiting is possible: that function may import what this thread is importing.
_PATIENCE = 300.0


@dataclass(eq=False)
class KernelPackage:
    """An entry point of the group `keyfold.kernels`, and what became of it.

    Attributes:
        namespace: the namespace of the operators, which is the entry point's name.
        value: `module` or `module:function`.
        distribution: the package that has it, as pip names it.
        version: its version.
        loaded: whether it was loaded.
        error: what its last loading failed with; None where it didn't.
    """

    namespace: str
    value: str
    distribution: str
    version: str
    loaded: bool = False
    error: Exception | None = None
    _loader: int | None = field(default=None, repr=False)
    _done: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def __str__(self) -> str:
        return f"{self.namespace} = {self.value} ({self.distribution} {self.version})"

    def _load(self) -> None:
        """Load it, unless it is loaded or is being loaded by this thread.

        Raises:
            KernelLoadError: it can't be. The next use tries again.
        """
        if self.loaded:
            return
        try:
            self._run()
        except Exception as error:
            self.error = error
            raise KernelLoadError(
                f"the kernels for the namespace {self.namespace!r} that {self.distribution} "
                f"{self.version} offers can't be loaded: {type(error).__name__}: {error} (entry "
                f"point {self.namespace} = {self.value} of {GROUP})"
            ) from error
        self.error = None

    def _run(self) -> None:
        parts = _VALUE.fullmatch(self.value)
        if parts is None:
            raise ValueError(f"{self.value!r} is no entry point: module or module:function")
        # Without a lock of ours: Python's own, per module, knows cycles.
        module = importlib.import_module(parts["module"])
        if parts["attribute"] is None:
            # A module that is still being imported, by this thread, doesn't count yet.
            spec = getattr(module, "__spec__", None)
            self.loaded = not getattr(spec, "_initializing", False)
            return
        function = operator.attrgetter(parts["attribute"])(module)
        if not callable(function):
            raise TypeError(f"{self.value} is {function!r}, and no function")
        self._call_once(function)

    def _call_once(self, function: Callable[[], object]) -> None:
        me = threading.get_ident()
        with self._done:
            if self._loader == me:
                # The function itself asks for something of its namespace.
                return
            if not self._done.wait_for(lambda: self._loader is None, _PATIENCE):
                raise TimeoutError(f"another thread has been in {self.value} for {_PATIENCE:g} s")
            if self.loaded:
                return
            self._loader = me
        try:
            function()
            self.loaded = True
        finally:
            with self._done:
                self._loader = None
                self._done.notify_all()


# The kernel packages that are installed, by namespace; None until the first look-up.
_offers: dict[str, list[KernelPackage]] | None = None
# Packages whose metadata can't be read: `name: why`.
_unreadable: list[str] = []
_lock = threading.Lock()


def provide(name: str) -> bool:
    """Load what packages offer for a namespace of which something is missing.

    Args:
        name: the namespace, or the full name of an operator in it.

    Returns:
        Whether there is anything that offers it, so that looking again makes sense.

    Raises:
        KernelLoadError: a package can't be loaded; the others are, first.
    """
    offers = _scan()
    packages = offers.get(name.partition("::")[0]) if offers else None
    if not packages:
        return False
    _load_all(packages)
    return True


def find(dispatcher: Any, op: Any, call: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Do what needs an operator; once more if its name is unknown and packages offer it.

    Args:
        dispatcher: where the operator is looked up; packages offer theirs to the process's own.
        op: the operator or its name.
        call: a function of the engine, which raises UnknownOperator before it does anything.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    try:
        return call(*args, **kwargs)
    except UnknownOperator as error:
        if not missing(dispatcher, op, error):
            raise
    return call(*args, **kwargs)


def missing(dispatcher: Any, op: Any, error: UnknownOperator) -> bool:
    """Whether the name of an operator was unknown to the engine, and packages offer it.

    An error out of a kernel's code is not about this operator.
    """
    from keyfold._default import dispatcher as default

    trace = error.__traceback__
    engine = trace is None or trace.tb_next is None
    return engine and isinstance(op, str) and dispatcher is default and provide(op)


def load_kernels(namespace: str | None = None) -> list[KernelPackage]:
    """Load the kernels that installed packages offer, without waiting for their first use.

    The installed packages are listed again, so that one installed since is found.

    Args:
        namespace: the namespace to load; all by default.

    Returns:
        The entry points that offer it, in the order in which they were loaded.

    Raises:
        KernelLoadError: one can't be loaded; the others are, first.
    """
    packages = [p for p in packages_offered(anew=True) if namespace in (None, p.namespace)]
    _load_all(packages)
    return packages


def packages_offered(*, anew: bool = False) -> list[KernelPackage]:
    """The entry points of all packages, by namespace and the package's name."""
    return [package for packages in _scan(anew=anew).values() for package in packages]


def unreadable() -> list[str]:
    """Installed packages whose entry points can't be read, and why."""
    return list(_unreadable)


def _load_all(packages: Iterable[KernelPackage]) -> None:
    failure: KernelLoadError | None = None
    for package in packages:
        try:
            package._load()
        except KernelLoadError as error:
            if failure is None:
                failure = error
            else:
                failure.add_note(str(error))
    if failure is not None:
        raise failure


def _scan(*, anew: bool = False) -> dict[str, list[KernelPackage]]:
    """The kernel packages that are installed. Kept, since a scan reads a file of each package."""
    global _offers
    if _offers is not None and not anew:
        return _offers
    with _lock:
        if _offers is None or anew:
            former = {str(p): p for found in (_offers or {}).values() for p in found}
            _unreadable.clear()
            fresh = sorted(_read(), key=lambda p: (p.namespace, p.distribution.lower(), p.value))
            offers: dict[str, list[KernelPackage]] = {}
            for package in fresh:
                known = former.get(str(package), package)
                offers.setdefault(package.namespace, []).append(known)
            _offers = offers
        return _offers


def _read() -> Iterable[KernelPackage]:
    # Slow to import, and needed here alone.
    from importlib import metadata

    seen = set()
    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if GROUP not in text:
                continue
            name = distribution.metadata["Name"] or "a package without a name"
            # The first on the path is the one that is imported.
            canonical = re.sub(r"[-_.]+", "-", name).lower()
            if canonical in seen or _is_hidden(name, distribution):
                continue
            seen.add(canonical)
            version = distribution.version
            points = [p for p in distribution.entry_points if p.group == GROUP]
        except Exception as error:
            where = getattr(distribution, "_path", distribution)
            _unreadable.append(f"{where}: {type(error).__name__}: {error}")
            continue
        for point in points:
            yield KernelPackage(point.name, point.value, name, version)


def _is_hidden(name: str, distribution: Distribution) -> bool:
    """Whether an earlier place on the path has another version of a distribution."""
    from importlib import metadata

    first = metadata.distribution(name)
    return first.locate_file("") != distribution.locate_file("")
