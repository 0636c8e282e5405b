"""`keyfold.torch.export`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._dispatch._registration import get_op
from keyfold._errors import OperatorRemoved, SchemaError
from keyfold.torch import _library, _schema
from keyfold.torch._exported import Forward, lock

# torch's own namespaces, which are for torch's operators alone.
_RESERVED = frozenset(("aten", "prim", "prims"))
_exported: dict[str, Exported] = {}


class Exported:
    """A keyfold operator that torch has, too.

    A call of it is a call of the torch operator. It stays registered until `close()` or the end of
    a `with` block, even if this object is dropped.
    """

    def __init__(self, operator: _core.Operator, op: Any, forward: Forward | None) -> None:
        self._operator = operator
        self._op = op
        self._forward = forward

    @property
    def op(self) -> Any:
        """The torch operator, an `OpOverload`."""
        return self._op

    @property
    def operator(self) -> _core.Operator:
        """The keyfold operator."""
        return self._operator

    @property
    def closed(self) -> bool:
        """Whether torch has it no more."""
        return self._forward is not None and self._forward.closed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward is not None and self._forward.closed:
            raise OperatorRemoved(f"{self._forward.schema.full_name} was taken back from torch")
        return self._op(*args, **kwargs)

    def close(self) -> None:
        """Take the torch operator back, and its derivative; nothing, where it was torch's own."""
        if self._forward is None:
            return
        with lock:
            name = self._forward.schema.full_name
            if _exported.get(name) is self:
                del _exported[name]
            self._forward.close()

    def __enter__(self) -> Exported:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<keyfold.torch.Exported {self._op}{' (closed)' if self.closed else ''}>"


def export(op: Any, *, name: str | None = None, fake: Callable[..., Any] | None = None) -> Exported:
    """Make a keyfold operator a torch custom operator.

    torch gets its kernels for CPU and CUDA, which call the keyfold operator with all its layers;
    its fake, from the operator's Meta kernel; and its derivative, `<name>_backward`, which makes
    the call again, recorded by keyfold, and asks for the gradients. So it works under
    `torch.compile(fullgraph=True)`.

    A result that may be a view of an argument is copied, since torch has no custom views.

    Args:
        op: the operator or its name.
        name: its name in torch, `namespace::name` or `namespace::name.overload`; keyfold's by
            default, but `keyfold::name` for the built-in operators in `aten`.
        fake: a fake of your own, as for `torch.library.register_fake`: the Meta kernel sees plain
            numbers, so that torch makes a graph for each shape; this function may keep them
            symbolic.

    Returns:
        The exported operator; the same again where it was exported under this name before.

    Raises:
        UnknownOperator: keyfold has no such operator.
        SchemaError: torch can't express its schema.
        RegistrationError: torch has another operator of that name.
    """
    operator = get_op(op)
    inner = _schema.parse(operator.schema)
    namespace = "keyfold" if inner.namespace in _RESERVED else inner.namespace
    local, overload = inner.name, inner.overload
    if name is not None:
        namespace, separator, local = name.partition("::")
        local, _, overload = local.partition(".")
        if not (separator and namespace and local):
            raise SchemaError(f"a name for torch is `namespace::name`, not {name!r}")
    outer = _schema.to_torch(inner, namespace, local, "" if overload == "default" else overload)
    with lock:
        before = _exported.get(outer.full_name)
        if before is not None:
            if before.operator is operator and not operator.removed:
                return before
            if before.operator.removed:
                before.close()
        from keyfold.torch._import import origin

        if origin(operator) == outer.full_name:
            return Exported(operator, _library.overload(outer), None)
        forward = Forward(operator, inner, outer, fake)
        try:
            if forward.differentiable:
                forward.derivative()
        except BaseException:
            forward.close()
            raise
        made = Exported(operator, forward.op, forward)
        _exported[outer.full_name] = made
        return made


def exported_operator(name: str) -> _core.Operator | None:
    """The keyfold operator that torch has under a name, if it is an exported one."""
    found = _exported.get(name)
    return None if found is None else found.operator
