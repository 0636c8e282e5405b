"""Graphs: their tensors, JSON, drawings, plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keyfold import _core
from keyfold._errors import BindingError, InvalidValue
from keyfold.cudnn import _library
from keyfold.cudnn._activations import Activations
from keyfold.cudnn._attention import Attention
from keyfold.cudnn._base import found, integer, mentions_narrow, sizes, word
from keyfold.cudnn._convolutions import Convolutions
from keyfold.cudnn._names import refused_by_graph, refused_by_tensor
from keyfold.cudnn._narrow import bits_of, narrow_name
from keyfold.cudnn._operations import Operations
from keyfold.cudnn._plan import Plan
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Graph"]

Progress = Callable[[int, int, str], object]


class Graph(Activations, Convolutions, Operations, Attention):
    """A graph of cuDNN's operations, which any device of keyfold's runs.

    Methods add tensors and operations, and infer the sizes of results; they have the names of
    NVIDIA's frontend. Operations take `compute_data_type=` and `name=` beside their arguments.

    Args:
        io_data_type: the data type of tensors with memory, where they have none of their own.
        intermediate_data_type: the data type of virtual tensors; float32 by default.
        compute_data_type: the data type that operations compute in; float32 by default.
        name: the graph's name in errors and drawings.

    Raises:
        DTypeError: graphs have no such data type.

    Example:
        >>> g = kf.cudnn.Graph(io_data_type="float32")
        >>> x = g.tensor(dim=[2, 3], name="x")
        >>> y = g.relu(x).set_output(True).set_name("y")
        >>> y.dim
        [2, 3]
        >>> plan = g.build(device="cpu")
        >>> plan({x: kf.ones((2, 3), dtype="float32")})[y].tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    @refused_by_graph
    def __init__(
        self,
        *,
        io_data_type: Any = None,
        intermediate_data_type: Any = "float32",
        compute_data_type: Any = "float32",
        name: str = "",
    ) -> None:
        types = map(self._type, (io_data_type, intermediate_data_type, compute_data_type))
        self._native = _core._CudnnGraph(name, *types)
        self._tensors: dict[int, GraphTensor] = {}

    @refused_by_tensor
    def tensor(
        self,
        dim: Sequence[int],
        stride: Sequence[int] | None = None,
        data_type: Any = None,
        *,
        name: str = "",
        uid: int = 0,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        alignment: int = 16,
    ) -> GraphTensor:
        """Add a tensor, whose array is given when the graph is run.

        Args:
            dim: its sizes: images, channels, space for operations on images.
            stride: the distances of neighbours in memory, in elements; packed in row-major order by
                default. Channels last ("NHWC") are strides.
            data_type: its data type; the graph's `io_data_type` by default.
            name: its name in errors and drawings, by which a plan takes its array, too.
            uid: its number; the next free one by default.
            is_virtual: whether it has no memory.
            is_pass_by_value: whether it is one number, which a plan takes in place of an array.
            alignment: the alignment of its address in bytes.

        Raises:
            ShapeError: the strides aren't as many as the sizes.
            InvalidValue: another tensor has the number.
            DTypeError: graphs have no such data type.

        Example:
            >>> g = kf.cudnn.Graph()
            >>> g.tensor(dim=[2, 3, 4, 5], stride=[60, 1, 15, 3], data_type="float16", name="x")
            GraphTensor('x', float16, dim=[2, 3, 4, 5], stride=[60, 1, 15, 3])
        """
        made = self._native.tensor(
            sizes(dim, "tensor(): dim"),
            None if stride is None else sizes(stride, "tensor(): stride"),
            self._type(data_type),
            name,
            integer(uid, "tensor(): uid"),
            is_virtual,
            is_pass_by_value,
            integer(alignment, "tensor(): alignment"),
        )
        return self._own(made)

    def tensor_like(self, array: Any, *, name: str = "", uid: int = 0) -> GraphTensor:
        """Add a tensor with the sizes, strides and data type of an array or of another tensor.

        Args:
            array: an array of any library that keyfold reads, or a tensor of a graph, whose
                alignment the new one has, too.
            name: its name.
            uid: its number; the next free one by default.
        """
        alignment = 16
        if isinstance(array, GraphTensor):
            dim, stride, data_type = array.dim, array.stride, array.data_type
            alignment = array.alignment
        else:
            narrow = narrow_name(array)
            view = _core._view(array if narrow is None else bits_of(array))
            dim, stride, data_type = list(view.shape), list(view.strides), narrow or str(view.dtype)
        return self.tensor(
            dim=dim, stride=stride, data_type=data_type, name=name, uid=uid, alignment=alignment
        )

    def scalar(self, value: float, data_type: Any = None, *, name: str = "") -> GraphTensor:
        """Add a number that belongs to the graph, which operations broadcast.

        Args:
            value: the number.
            data_type: its data type; the graph's `compute_data_type` by default.
            name: its name.
        """
        value = value.item() if hasattr(value, "item") else value
        return self._own(self._native.scalar(value, self._type(data_type), name))

    def tensor_scalar(self, value: float, scalar_type: Any = None, name: str = "") -> GraphTensor:
        """Add a number that belongs to the graph, as `scalar` does: NVIDIA's name of it.

        Args:
            value: the number.
            scalar_type: one of `scalar_type`, which are the same here: the graph has the number.
            name: its name.
        """
        if scalar_type is not None:
            kind = word(scalar_type, "tensor_scalar(): scalar_type")
            if kind not in ("runtime_param", "compile_time_const"):
                raise InvalidValue(
                    "tensor_scalar(): scalar_type is runtime_param or compile_time_const, not "
                    f"{kind!r}"
                )
        return self.scalar(value, name=name)

    @property
    def name(self) -> str:
        """Its name; may be empty."""
        return self._native.operations()[0]

    @property
    def tensors(self) -> list[GraphTensor]:
        """Its tensors, in the order in which they were added."""
        return [self._own(uid) for uid in self._native.uids()]

    def __getitem__(self, key: int | str) -> GraphTensor:
        """Its tensor of a number or a name.

        Raises:
            UnknownTensor: no tensor has it, or several have that name.
        """
        return found(key, self.tensors, "the graph has")

    def __iter__(self) -> Iterator[GraphTensor]:
        return iter(self.tensors)

    def validate(self) -> None:
        """Look for mistakes: of the graph's structure, its shapes, and data types.

        Raises:
            Error: of the kind of the mistake; it names the operation, the tensor and the numbers.
        """
        self._native.validate()

    def build(
        self,
        device: Any = "cpu",
        *,
        policy: str = "first",
        workspace_limit: int | None = None,
        precision: str = "spec",
        tf32: bool = False,
        rewrite: str = "split",
        progress: Progress | None = None,
    ) -> Plan:
        """Return the graph's plan for a device, from the cache or built now; Ctrl-C cancels.

        Args:
            device: the device; the CPU by default. `cuda` is a card that is here, on which
                NVIDIA's libcudnn runs the graph. `h100`, another name of `CardProfile.names`, a
                profile or its file is a card that needn't be here: libcudnn plans for it, and the
                plan can be looked at and kept.
            policy: `first` that works, `autotune` for the quickest, or `deterministic`.
            workspace_limit: the most scratch memory that a run may need, in bytes; the reference
                executor counts the virtual tensors that it holds at once.
            precision: `spec` computes in the graph's data types, `float32` and `float64` in those.
            tf32: whether float32 may be multiplied as TF32.
            rewrite: what libcudnn's planner may do with a graph that it has no engine for: `view`
                sees the same memory under other dimensions, `split` computes it by several plans,
                too. `Plan.steps` say what was done.
            progress: called with the number of steps done, of all steps, and what is done next;
                what it raises cancels the build.

        Raises:
            NotSupported: the device has no plan for the graph, with the reason.
            LibraryLoadError: libcudnn isn't there or can't be used, or the helper process that
                plans with it died.
            Error: the graph isn't valid, as of `validate`.
        """
        options = self._options(device, policy, workspace_limit, precision, tf32, rewrite)
        native = _core._cudnn_build(self._native, self._keys(), options, progress)
        return Plan(native, self._may_be_narrow)

    def _keys(self) -> dict[int, GraphTensor]:
        """The objects of its tensors, by number."""
        return {uid: self._own(uid) for uid in self._native.uids()}

    @staticmethod
    def _options(
        device: Any,
        policy: str,
        workspace_limit: int | None,
        precision: str,
        tf32: bool,
        rewrite: str,
    ) -> dict[str, Any]:
        if workspace_limit is not None:
            workspace_limit = integer(workspace_limit, "build(): workspace_limit")
            if workspace_limit < 0:
                raise InvalidValue(
                    f"build(): workspace_limit is a number of bytes, not {workspace_limit}"
                )
        libcudnn = _library.options(device)
        return {
            "libcudnn": libcudnn,
            "device": _core.Device("cuda" if libcudnn else device),
            "policy": word(policy, "build(): policy"),
            "workspace_limit": workspace_limit,
            "precision": word(precision, "build(): precision"),
            "tf32": bool(tf32),
            "rewrite": word(rewrite, "build(): rewrite"),
        }

    def to_json(self) -> str:
        """Return the graph as JSON, with its version."""
        return self._native.to_json()

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Return the graph of a JSON text.

        Its tensors are `graph["name"]` and `graph[uid]`, and its default data types are those that
        it was made with.

        Raises:
            InvalidValue: the text is damaged, or of a later version; it says where.
        """
        if not isinstance(text, str):
            raise BindingError(f"from_json() takes a string, not {type(text).__name__}")
        graph = cls.__new__(cls)
        graph._native = _core._CudnnGraph.from_json(text)
        graph._tensors = {}
        graph._may_be_narrow = mentions_narrow(graph.to_json())
        return graph

    def __reduce__(self) -> tuple[Callable[[str], Graph], tuple[str]]:
        """Copy and pickle it as its JSON."""
        return type(self).from_json, (self.to_json(),)

    def signature(self) -> str:
        """Return the digest of what the graph computes: 32 hexadecimal digits.

        It is the same in every process, and doesn't depend on names, numbers and order: for logs
        and names of files. The cache of plans compares whole graphs.
        """
        return self._native.signature()

    def draw(self, format: str = "svg") -> str:
        """Return a drawing; the graph may be one that isn't valid.

        Args:
            format: `svg`, a picture; `mermaid`, for Markdown; or `dot`, for Graphviz.

        Raises:
            InvalidValue: there is no such format.
        """
        return self._native.draw(format)

    def _repr_svg_(self) -> str:
        """The picture that notebooks show."""
        return self._native.draw("svg")

    def __repr__(self) -> str:
        name, operations = self._native.operations()
        count = len(self._native.uids())
        shown = ", ".join(operations[:8]) + (", ..." if len(operations) > 8 else "")
        return f"Graph({name!r}, {count} tensors, operations: {shown or 'none'})"
