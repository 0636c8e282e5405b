"""A call of a fused function that is recorded, if it can be."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from keyfold import _core
from keyfold._errors import GradientError
from keyfold._layers._arguments import Arguments, Given, is_array, is_tree
from keyfold._layers._changes import Snapshot, replace
from keyfold._layers._results import CONSTANTS
from keyfold._layers._watched import Reads

__all__ = ["Attempt"]


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A call that is recorded, if it can be."""

    arguments: Arguments
    # By which it is remembered if it can't.
    form: Any
    recorder: _core._Recorder
    given: Given
    reads: Reads
    # The contents of the objects that the function may change, before the call.
    before: Snapshot

    def writes_unseen(self) -> bool:
        """Whether it may write to a tensor by a NumPy array, which can't be seen."""
        arrays = [one for one, _ in self.before if issubclass(type(one), np.ndarray)]
        if not arrays:
            return False
        tensors = [one for one in self.held() if isinstance(one, _core.Tensor)]
        return self.recorder.touches([byte_bounds(array) for array in arrays], tensors)

    def run_instead(self, reason: str) -> None:
        """Run what the function called.

        Raises:
            Error: an operation failed.
        """
        try:
            self.recorder.run_instead(reason)
        finally:
            replace(self.before, self.given.own)
            self.recorder.close(False)

    def again_after(self, error: BaseException) -> str | None:
        """Run what the function called before it raised.

        Returns the reason if the function is to be called again, without the recorder.

        Raises:
            Error: an operation failed, whose error would have ended the function.
        """
        self.given.hand_back()
        recorder = self.recorder
        stops = isinstance(error, KeyboardInterrupt)
        reason = f"it raised {type(error).__name__}"
        # NumPy's arrays have other methods than the tensors that stand for them, and a write that
        # Autograd records has to reach the argument itself.
        if isinstance(error, GradientError):
            reason = "it writes to an argument what requires gradients"
        is_again = isinstance(error, Exception) and (
            self.arguments.are_numpy() or isinstance(error, GradientError)
        )
        # A write that was made can't be made again.
        has_written = recorder.has_written()
        is_again = is_again and not (has_written and recorder.refused() is not None)
        if stops or (is_again and has_written):
            replace(self.before, self.given.own)
            recorder.close(True)
        else:
            self.run_instead(reason)
        return reason if is_again else None

    def again_for(self, result: Any) -> bool:
        """Whether to call the function again, without the recorder, for another kind of result.

        An object that holds tensors would have held NumPy's arrays.
        """
        if not self.arguments.are_numpy() or self.recorder.has_written():
            return False
        return not (is_tree(result) or is_array(result) or type(result) in CONSTANTS)

    def held(self) -> Iterator[Any]:
        """What the function reads besides its arguments."""
        for _, name, value in self.reads.guards:
            yield from value if name is None else (value,)

    def reached(self) -> set[int]:
        """The ids of the objects that the function reaches, those by its arguments' objects too."""
        return self.reads.reached.keys() | {id(one) for one, _ in self.before}

    def escapes(self) -> bool:
        """Whether somebody holds a tensor that the function made, besides its results."""
        if not self.recorder.escapes():
            return False
        # Objects that refer to each other may keep it.
        gc.collect()
        return self.recorder.escapes()
