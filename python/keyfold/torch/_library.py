"""Defining operators in torch, and taking them back."""

from __future__ import annotations

from typing import Any

import torch

from keyfold._errors import RegistrationError, SchemaError
from keyfold.torch import _schema
from keyfold.torch._schema import Schema


def define(schema: Schema) -> Any:
    """Define an operator in torch, in a library of its own.

    Raises:
        RegistrationError: torch has one of that name.
        SchemaError: torch refuses it.
    """
    existing = schema_in_torch(schema)
    if existing is not None:
        raise RegistrationError(
            f"torch has an operator {schema.full_name} already: {existing}; export yours under "
            'another name with name="namespace::name"'
        )
    library = torch.library.Library(schema.namespace, "FRAGMENT")
    text = schema.text(qualified=False)
    try:
        library.define(text, tags=_tags(schema))
    except (RuntimeError, ValueError) as error:
        library._destroy()
        raise SchemaError(
            f"{schema.full_name}: torch refuses the schema {text!r}: {str(error).splitlines()[0]}"
        ) from error
    keep(schema)
    return library


# By operator: a library that has a registration for it, and does nothing.
_kept: dict[str, Any] = {}


def keep(schema: Schema) -> None:
    """Make calls of torch's operator errors, not crashes, when it has been taken back.

    torch frees an operator with its last registration, though an `OpOverload` may still point to
    it. So one stays, at a key that no tensor has: one per name, however often that is defined.
    """
    if schema.full_name not in _kept:
        library = torch.library.Library(schema.namespace, "FRAGMENT")
        library.impl(
            schema.local_name, torch.library.fallthrough_kernel, "TESTING_ONLY_GenericWrapper"
        )
        _kept[schema.full_name] = library


def _tags(schema: Schema) -> tuple[Any, ...]:
    tags = [torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order]
    for fits, tag in ((_schema.is_in_place, "inplace"), (_schema.is_out, "out")):
        if fits(schema):
            # Older versions of torch know no custom operators that give back what they write to.
            if not hasattr(torch.Tag, tag):
                raise SchemaError(
                    f"{schema.full_name}: torch {torch.__version__} has no custom operators that "
                    "give back an argument that they write to; let it return nothing (`-> ()`)"
                )
            return (*tags, getattr(torch.Tag, tag))
    return tuple(tags)


def schema_in_torch(schema: Schema) -> str | None:
    """The schema that torch has under a name, if it has one."""
    try:
        return str(torch._C._get_schema(f"{schema.namespace}::{schema.name}", schema.overload))
    except RuntimeError:
        return None


def overload(schema: Schema) -> Any:
    """The operator of torch of a name, as an `OpOverload`."""
    packet = getattr(getattr(torch.ops, schema.namespace), schema.name)
    return getattr(packet, schema.overload or "default")


def below_autograd(op: Any, keyset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass a call on to what is registered below Autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)
