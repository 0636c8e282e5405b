"""Trees of arguments: tuples, lists and dicts of leaves, as deep as you like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["map_leaves"]


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
