"""`keyfold.torch.import_`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from keyfold import _core
from keyfold._errors import BindingError, RegistrationError, SchemaError, UnknownOperator
from keyfold.torch import _schema
from keyfold.torch._export import Exported, exported_operator
from keyfold.torch._exported import lock
from keyfold.torch._imported import Forward

# keyfold's own operators are in a namespace of this name.
_RENAMED = {"aten": "torch"}
_imported: dict[str, Forward] = {}


def import_(
    op: Any, *, name: str | None = None, keys: Sequence[Any] = ("CPU", "CUDA")
) -> _core.Operator:
    """Make a torch operator a keyfold operator.

    keyfold gets its kernels at the given keys, which call the torch operator under `torch.no_grad`
    on tensors that share the arguments' memory, and give results in the caller's library; its Meta
    kernel, from torch's; and its derivative, `<name>_backward`, which makes the call again,
    recorded by torch, and asks for the gradients. On torch's own tensors torch records as always.

    Args:
        op: an `OpOverload`, a packet or name with one overload or a default one, a
            `torch.library.custom_op`, or what `export` returned.
        name: its name in keyfold, `namespace::name` or `namespace::name.overload`; torch's by
            default, but `torch::name` for torch's own operators in `aten`.
        keys: the dispatch keys to register at.

    Returns:
        The keyfold operator; the same again where it was imported under this name before, and the
        one that was exported, if it is one.

    Raises:
        UnknownOperator: torch has no such operator.
        SchemaError: keyfold can't express its schema.
        RegistrationError: keyfold has another operator of that name, or a kernel there.
    """
    found = _overload(op)
    text = str(found._schema)
    theirs = _schema.parse(text)
    namespace, local, overload = theirs.namespace, theirs.name, theirs.overload
    if name is None:
        own = exported_operator(theirs.full_name)
        if own is not None and not own.removed:
            return own
        namespace = _RENAMED.get(namespace, namespace)
    else:
        namespace, separator, local = name.partition("::")
        local, _, overload = local.partition(".")
        if not (separator and namespace and local):
            raise SchemaError(f"a name for keyfold is `namespace::name`, not {name!r}")
    schema = _schema.to_keyfold(text, namespace, local, overload)
    with lock:
        before = _imported.get(schema.full_name)
        if before is not None and not before.operator.removed:
            if before.op is found and before.keys == tuple(keys):
                return before.operator
            raise RegistrationError(
                f"{schema.full_name} is imported already: torch's {before.op} at "
                f"{', '.join(map(str, before.keys))}; "
                f"take that back first, with keyfold.torch.remove({schema.full_name!r})"
            )
        made = Forward(found, schema, keys)
        _imported[schema.full_name] = made
        return made.operator


def remove(op: Any) -> bool:
    """Take back what `import_` or `export` registered.

    Args:
        op: the keyfold operator that `import_` returned, or its name; or what `export` returned.

    Returns:
        Whether there was anything to take back.
    """
    if isinstance(op, Exported):
        was = not op.closed
        op.close()
        return was
    with lock:
        for name, made in list(_imported.items()):
            if op in (name, made.operator):
                del _imported[name]
                made.close()
                return True
    return False


def origin(operator: _core.Operator) -> str | None:
    """The full name of the torch operator that a keyfold operator was imported from."""
    for made in _imported.values():
        if made.operator is operator:
            return _schema.parse(str(made.op._schema)).full_name
    return None


def _overload(op: Any) -> Any:
    """The operator of torch, as an `OpOverload`."""
    if isinstance(op, Exported):
        return op.op
    if isinstance(op, torch._ops.OpOverload):
        return op
    if hasattr(op, "_opoverload"):
        return op._opoverload
    if isinstance(op, str):
        return _named(op)
    if not isinstance(op, torch._ops.OpOverloadPacket):
        raise BindingError(
            "an operator of torch is an OpOverload, an OpOverloadPacket, a CustomOpDef or a name, "
            f"not {type(op).__qualname__}"
        )
    overloads = [getattr(op, name) for name in op.overloads()]
    default = [one for one in overloads if one._overloadname == "default"]
    # torch's own operators have a default overload for plain numbers beside those for tensors.
    if len(overloads) > 1 and not (default and "Tensor" in str(default[0]._schema)):
        shown = ", ".join(_schema.parse(str(one._schema)).full_name for one in overloads)
        raise SchemaError(f"torch's {op} has several overloads: name one of {shown}")
    return (default or overloads)[0]


def _named(name: str) -> Any:
    namespace, separator, local = name.partition("::")
    local, _, overload = local.partition(".")
    if not (separator and namespace and local):
        raise UnknownOperator(f"an operator's name in torch is `namespace::name`, not {name!r}")
    packet = getattr(getattr(torch.ops, namespace), local, None)
    if packet is None or (overload and overload not in packet.overloads()):
        raise UnknownOperator(f"torch has no operator {name}")
    return getattr(packet, overload) if overload else _overload(packet)
