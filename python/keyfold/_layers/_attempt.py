"""A call of a fused function that is recorded, if it can be."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

from keyfold import _core
from keyfold._errors import GradientError
from keyfold._layers._arguments import Arguments, Given
from keyfold._layers._changes import Snapshot, replace
from keyfold._layers._watched import Watched

__all__ = ["Attempt"]


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A call that is recorded, if it can be."""

    arguments: Arguments
    # By which it is remembered if it can't.
    form: Any
    recorder: _core._Recorder
    given: Given
    guards: list[Watched]
    # What the function may change, as it was.
    before: Snapshot

    def run_instead(self, reason: str) -> None:
        """Run what the function called.

        Raises:
            Error: an operation failed.
        """
        try:
            self.recorder.run_instead(reason)
        finally:
            self.recorder.close(False)

    def again_after(self, error: BaseException) -> str | None:
        """Run what the function called before it raised.

        Returns the reason if the function is to be called again, without the recorder.

        Raises:
            Error: an operation failed, whose error would have ended the function.
        """
        self.given.hand_back()
        recorder, are_numpy = self.recorder, self.arguments.are_numpy()
        stops = not isinstance(error, Exception)
        reason = f"it raised {type(error).__name__}"
        # NumPy's arrays have other methods than the tensors that stand for them, and a write that
        # Autograd records has to reach the argument itself.
        if isinstance(error, GradientError):
            reason = "it writes to an argument what requires gradients"
        is_again = are_numpy or isinstance(error, GradientError)
        # What was written can't be written again.
        has_written = recorder.has_written()
        is_again = is_again and not (stops or (has_written and recorder.refused() is not None))
        try:
            if stops or (is_again and has_written):
                recorder.close(True)
            else:
                self.run_instead(reason)
        finally:
            replace(self.before, self.given.own)
        return reason if is_again else None

    def held(self) -> Iterator[Any]:
        """What the function reads besides its arguments."""
        for _, name, value in self.guards:
            yield from value if name is None else (value,)

    def escapes(self) -> bool:
        """Whether somebody holds a tensor that the function made, besides its results."""
        if not self.recorder.escapes():
            return False
        # Objects that refer to each other may keep it.
        gc.collect()
        return self.recorder.escapes()
