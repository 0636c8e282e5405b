"""Trees of arguments: tuples, lists and dicts of leaves, as deep as you like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError

__all__ = ["map_leaves", "refuse_registered"]


def refuse_registered(leaf: Any, place: str, purpose: str) -> None:
    """Refuse an object of a class that was registered with `register_array_type`.

    Raises:
        BindingError: it is one; only its own kernels know what its elements are.
    """
    if _core._is_registered(leaf):
        name = type(leaf).__qualname__
        raise BindingError(
            f"{place} is a {name}, a class registered by register_array_type, {purpose}: keyfold "
            f"doesn't know its elements; give a tensor instead, such as keyfold.asarray(x)"
        )


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The tree with other leaves, in order.

    Named tuples and subclasses of tuple and list stay what they are; dicts become plain ones.
    """
    if isinstance(tree, (tuple, list)):
        items = [map_leaves(item, function) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, dict):
        return {key: map_leaves(item, function) for key, item in tree.items()}
    return function(tree)
