"""Plans: graphs that are ready to run on a device, and the arrays that a run returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keyfold import _core
from keyfold._errors import InvalidValue, NotSupported
from keyfold.cudnn._base import found, label, matching
from keyfold.cudnn._narrow import narrow_tensors, run
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Plan", "Results"]


class Results(dict[GraphTensor, Any]):
    """The arrays that a run returns: a dict from the outputs' tensors, with other keys to read it.

    `results[y]`, `results["y"]` and `results[y.uid]` are one array.

    Raises:
        UnknownTensor: no output has the number or name, or several have the name.

    Example:
        >>> g = kf.cudnn.Graph(io_data_type="float32")
        >>> y = g.exp(g.tensor(dim=[2], name="x")).set_output(True).set_name("y")
        >>> results = g.build()({"x": kf.zeros(2, dtype="float32")})
        >>> results["y"] is results[y] is results[y.uid]
        True
        >>> "z" in results, results.get("z")
        (False, None)
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __getitem__(self, key: GraphTensor | str | int, /) -> Any: ...

    def __missing__(self, key: Any) -> Any:
        return self[found(key, self, "the results have")]

    def __contains__(self, key: object) -> bool:
        return bool(matching(key, self))

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the array of a tensor, a number or a name, or the default where there is none.

        Raises:
            UnknownTensor: several outputs have the name.
        """
        return self[key] if matching(key, self) else default


class Plan:
    """A graph that is ready to run on a device.

    `Graph.build` makes it. Called with a dict of arrays it computes the graph's outputs. Several
    threads may call one plan.

    Example:
        >>> g = kf.cudnn.Graph(io_data_type="float32")
        >>> x = g.tensor(dim=[2, 2], name="x")
        >>> y = g.neg(x).set_output(True).set_name("y")
        >>> plan = g.build()
        >>> plan({x: kf.ones((2, 2), dtype="float32")})["y"].tolist()
        [[-1.0, -1.0], [-1.0, -1.0]]
    """

    __slots__ = ("_native", "_run")

    def __init__(self, native: _core.Plan, may_be_narrow: bool) -> None:
        self._native = native
        narrow = narrow_tensors(native) if may_be_narrow else {}
        # Plans without narrow tensors, most of them, pay nothing for those.
        self._run: Callable[[Any, Any], dict[GraphTensor, Any]]
        self._run = functools.partial(run, native, narrow) if narrow else native

    def __call__(self, tensors: Mapping[Any, Any], out: Mapping[Any, Any] | None = None) -> Results:
        """Compute the graph's outputs.

        Args:
            tensors: a dict of an array for each input, by its tensor, uid or name: NumPy's,
                keyfold's, or any other library's that keyfold reads, of the tensor's data type,
                sizes and strides, on the plan's device. A number does for a tensor that is passed
                by value. An array of ml_dtypes does for bfloat16 and 8-bit floats, which are bytes
                (uint8) otherwise.
            out: arrays for outputs, which are written; other outputs are new arrays.

        Returns:
            The outputs' arrays by tensor, uid or name, of the library that the inputs are of.

        Raises:
            InvalidValue: a tensor is missing, given twice, or none of the graph's; an output's
                memory overlaps another tensor's; or `out` has no array for an output that beta
                reads.
            DTypeError: an array has another data type, or a result of bfloat16 would be NumPy's.
            ShapeError: an array has other sizes or strides.
            DeviceError: an array is on another device.
            ReadOnlyError: an array in `out` can't be written.
            BindingError: it isn't a dict, or the arrays are of different libraries.
        """
        try:
            return Results(self._run(tensors, out))
        except InvalidValue:
            message = self._apart(tensors)
            if message is None:
                raise
            raise InvalidValue(message) from None

    def _apart(self, given: Any) -> str | None:
        """How a call's keys differ from the inputs; None where they don't, or where it isn't that.

        Calls that succeed pay nothing for it: the engine refuses first.
        """
        inputs = self._native.inputs
        missing = list(inputs)
        wrong: list[str] = []
        for key in given:
            meant = matching(key, inputs)
            missing = [tensor for tensor in missing if tensor not in meant]
            if len(meant) > 1:
                numbers = " and ".join(f"#{tensor.uid}" for tensor in meant)
                wrong.append(f"{key!r} is the name of {numbers}: give them by tensor or uid")
            elif not meant and matching(key, self._native.outputs):
                wrong.append(f"{key!r} is an output, which the plan returns: out= takes its array")
            elif not meant:
                wrong.append(f"{key!r} is no input of the graph")
        if missing:
            listed = ", ".join(map(label, missing))
            wrong.insert(0, f"{listed} {'is' if len(missing) == 1 else 'are'} missing")
        return f"plan(): {'; '.join(wrong)}" if wrong else None

    @property
    def workspace_bytes(self) -> int:
        """The scratch memory that a run needs, in bytes."""
        return self._native.workspace_bytes

    @property
    def engine(self) -> str:
        """The name of what computes it."""
        return self._native.engine

    @property
    def device(self) -> _core.Device:
        """The device that it runs on; `cuda:0` of a plan for a card that isn't here."""
        return self._native.device

    @property
    def signature(self) -> str:
        """The signature of its graph: 32 hexadecimal digits."""
        return self._native.signature

    @property
    def steps(self) -> list[str]:
        """The steps from the graph to the plan, in words."""
        return self._native.steps

    @property
    def inputs(self) -> tuple[GraphTensor, ...]:
        """The tensors that a call is given."""
        return self._native.inputs

    @property
    def outputs(self) -> tuple[GraphTensor, ...]:
        """The tensors that a call returns."""
        return self._native.outputs

    def to_json(self) -> str:
        """Return libcudnn's plans of the graph as JSON: engines, knobs, and its own texts.

        Tensors have numbers from 1; `given` lists the graph's number of each.

        Raises:
            NotSupported: the plan isn't libcudnn's, but calls of operators.
        """
        text = self._native.document()
        if text is None:
            raise NotSupported(
                f"to_json(): a plan on {self.device} is calls of operators, not data"
            )
        return text

    def explain(self) -> str:
        """Say in lines of text what the plan is: engine, tensors, and the steps that led to it."""
        return self._native.explain()

    def __repr__(self) -> str:
        return repr(self._native)
