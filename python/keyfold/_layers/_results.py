"""How the results of a fused function are arranged, and which of them a recording can give."""

from __future__ import annotations

from typing import Any

from keyfold import _core
from keyfold._layers._arguments import Arguments, Given, is_array, is_tree
from keyfold._trace._structure import Spec, put_together, take_apart

__all__ = ["CONSTANTS", "Recorded", "Results"]

# Results besides arrays: each call gives the recorded one.
CONSTANTS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, _core.DType, _core.Device}
)


class Results:
    """How a function's results are arranged: outputs of the recording, and arguments."""

    def __init__(self, spec: Spec, count: int) -> None:
        self.spec = spec
        self.is_one = spec.get("output") == 0 and count == 1

    @staticmethod
    def of(
        result: Any, recorder: _core._Recorder, given: Given, reached: set[int]
    ) -> Results | str:
        """Take a result apart, and give the recorder its tensors.

        `reached` are the ids of the objects that the function reaches otherwise.

        Returns the reason if a recording can't give such a one.
        """
        found: list[tuple[str, Any]] = []
        try:
            if (reason := _unfit(result, given, reached)) is not None:
                return reason
            spec = take_apart(result, "", found, is_array, "output")
        except RecursionError:
            return "a result is too deep"
        if not all(isinstance(output, _core.Tensor) for _, output in found):
            return "a result is another library's array"
        statics = _statics(spec)
        other = next((leaf for leaf in statics if type(leaf) not in CONSTANTS), None)
        if other is not None:
            return f"a result is a {type(other).__name__}"
        outputs: dict[int, _core.Tensor] = {}
        for _, output in found:
            if id(output) not in given.places:
                if not recorder.made(output):
                    return "it returns a tensor that it was given otherwise than as an argument"
                outputs[id(output)] = output
        # Arguments are behind the outputs.
        numbers = {one: number for number, one in enumerate(outputs)}
        numbers |= {one: len(outputs) + place for one, place in given.places.items()}
        _renumber(spec, [numbers[id(output)] for _, output in found])
        return recorder.keep([*outputs.values()]) or Results(spec, len(outputs))

    def put(self, outputs: list[Any], leaves: tuple[Any, ...]) -> Any:
        return put_together(self.spec, "output", [*outputs, *leaves])


class Recorded:
    """A recording, how its results are arranged, and the structure of its arguments.

    `reached` are the ids of the lists and dicts that the function reads otherwise.
    """

    def __init__(
        self, recording: _core._Recording, results: Results, key: Any, reached: set[int]
    ) -> None:
        self.recording = recording
        self.results = results
        self.key = key
        self.reached = reached

    def may_be_given(self, arguments: Arguments, call: Any) -> bool:
        """Whether no list or dict is one that the function reads otherwise: it may ask by `is`."""
        if not self.reached:
            return True
        return self.reached.isdisjoint(map(id, arguments.holders(call)))


def _statics(spec: Spec) -> list[Any]:
    if "static" in spec:
        return [spec["static"]]
    items = spec.get("tuple") or spec.get("list") or [item for _, item in spec.get("dict", ())]
    return [leaf for item in items for leaf in _statics(item)]


def _renumber(spec: Spec, numbers: list[int]) -> None:
    if "output" in spec:
        spec["output"] = numbers[spec["output"]]
    for item in spec.get("tuple") or spec.get("list") or ():
        _renumber(item, numbers)
    for _, item in spec.get("dict", ()):
        _renumber(item, numbers)


def _unfit(result: Any, given: Given, reached: set[int]) -> str | None:
    """Why the lists, tuples and dicts of a result can't be put together anew, if they can't."""
    seen: set[int] = set()
    rest = [result]
    while rest:
        tree = rest.pop()
        if isinstance(tree, tuple) and not is_tree(tree):
            return "a result is of a class of its own that is a tuple"
        if not is_tree(tree):
            continue
        if not isinstance(tree, tuple):
            if id(tree) in seen:
                return "a result has a list or dict twice"
            if given.is_copy(tree) or id(tree) in reached:
                return "it returns a list or dict that it was given, or reads"
            seen.add(id(tree))
        rest += tree.values() if type(tree) is dict else tree
    return None
