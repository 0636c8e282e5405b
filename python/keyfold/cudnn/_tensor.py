"""Tensors of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyfold.cudnn._base import GraphBase

__all__ = ["GraphTensor"]


class GraphTensor:
    """A tensor of a graph: a place for an array, or what operations pass on.

    It is a key of the arrays that a plan takes and returns. `Graph.tensor` and operations make it.
    The setters return the tensor, so that they follow each other.
    """

    __slots__ = ("__weakref__", "_graph", "_uid")

    def __init__(self, graph: GraphBase, uid: int) -> None:
        self._graph = graph
        self._uid = uid

    def _read(self) -> tuple[str, str | None, list[int], list[int], int, bool, bool, Any]:
        return self._graph._native.read(self._uid)

    @property
    def uid(self) -> int:
        """Its number in the graph."""
        return self._uid

    @property
    def name(self) -> str:
        """Its name; may be empty."""
        return self._read()[0]

    @property
    def data_type(self) -> str | None:
        """The name of its data type, or None where it has none yet."""
        return self._read()[1]

    @property
    def dim(self) -> list[int]:
        """Its sizes: images, channels, space for operations on images."""
        return self._read()[2]

    @property
    def stride(self) -> list[int]:
        """The distances of neighbours in memory, in elements."""
        return self._read()[3]

    @property
    def alignment(self) -> int:
        """The alignment of its address in bytes, a power of two."""
        return self._read()[4]

    @property
    def is_virtual(self) -> bool:
        """Whether it has no memory: operations pass it on."""
        return self._read()[5]

    @property
    def is_pass_by_value(self) -> bool:
        """Whether it is one number that isn't read from memory."""
        return self._read()[6]

    @property
    def value(self) -> float | int | None:
        """The number that belongs to the graph, of a scalar."""
        value: float | int | None = self._read()[7]
        return value

    def set_output(self, is_output: bool = True) -> GraphTensor:
        """Say whether it is a result of the graph: it has memory, and a plan returns it."""
        return self._set("output", bool(is_output))

    def set_is_virtual(self, is_virtual: bool) -> GraphTensor:
        """Say whether it has no memory."""
        return self._set("output", not is_virtual)

    def set_data_type(self, data_type: Any) -> GraphTensor:
        """Set its data type.

        Raises:
            DTypeError: graphs have no such data type.
        """
        return self._set("data_type", self._graph._type(data_type))

    def set_dim(self, dim: Sequence[int]) -> GraphTensor:
        """Set its sizes; its strides follow, in the order that they had.

        The sizes of a reduction, a reshape and some gradients aren't determined by the inputs.
        What is computed from the tensor follows.
        """
        from keyfold.cudnn._base import sizes

        return self._set("dim", sizes(dim, "set_dim(): dim"))

    def set_stride(self, stride: Sequence[int]) -> GraphTensor:
        """Set its strides, in elements.

        Raises:
            ShapeError: they aren't as many as the sizes.
        """
        from keyfold.cudnn._base import sizes

        return self._set("stride", sizes(stride, "set_stride(): stride"))

    def set_name(self, name: str) -> GraphTensor:
        """Set its name, by which errors and drawings call it, and a plan takes its array."""
        return self._set("name", name)

    def set_uid(self, uid: int) -> GraphTensor:
        """Give it another number.

        Raises:
            InvalidValue: another tensor has that number, or it is 0.
        """
        from keyfold.cudnn._base import integer

        uid = integer(uid, "set_uid(): uid")
        self._set("uid", uid)
        tensors = self._graph._tensors
        tensors[uid] = tensors.pop(self._uid)
        self._uid = uid
        return self

    def _set(self, what: str, value: Any) -> GraphTensor:
        getattr(self._graph._native, f"set_{what}")(self._uid, value)
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[GraphBase, int]]:
        """Copy and pickle it with its graph, whose tensor of this number it is."""
        return operator.getitem, (self._graph, self._uid)

    def get_uid(self) -> int:
        """Return its number, as the property `uid`."""
        return self._uid

    def get_name(self) -> str:
        """Return its name, as the property `name`."""
        return self.name

    def get_dim(self) -> list[int]:
        """Return its sizes, as the property `dim`."""
        return self.dim

    def get_stride(self) -> list[int]:
        """Return its strides, as the property `stride`."""
        return self.stride

    def get_data_type(self) -> str | None:
        """Return the name of its data type, as the property `data_type`."""
        return self.data_type

    def get_output(self) -> bool:
        """Return whether it has memory."""
        return not self.is_virtual

    def get_is_virtual(self) -> bool:
        """Return whether it has no memory, as the property `is_virtual`."""
        return self.is_virtual

    def get_is_pass_by_value(self) -> bool:
        """Return whether it is one number, as the property `is_pass_by_value`."""
        return self.is_pass_by_value

    def __repr__(self) -> str:
        name, data_type, dim, stride, _, virtual, _, value = self._read()
        title = repr(name) if name else f"#{self._uid}"
        if value is not None:
            return f"GraphTensor({title}, {data_type}, value={value})"
        tail = ", virtual" if virtual else ""
        return f"GraphTensor({title}, {data_type}, dim={dim}, stride={stride}{tail})"
