"""The exceptions that keyfold raises.

Each is a `keyfold.Error` and also the builtin exception that a person would catch. `BY_KIND` maps
the engine's error kinds to these classes; a test raises each of them.
"""

from __future__ import annotations

__all__ = [
    "BY_KIND",
    "BindingError",
    "CudnnError",
    "DTypeError",
    "DeviceError",
    "DispatchError",
    "EmptyKeySetError",
    "Error",
    "ExchangeError",
    "ExpressionError",
    "GradientError",
    "GuardError",
    "IndexOutOfRange",
    "InvalidValue",
    "KernelFailed",
    "KernelLoadError",
    "KernelPanic",
    "KernelReturnError",
    "LibraryLoadError",
    "MissingKernel",
    "NotSupported",
    "OpCheckError",
    "OperatorRemoved",
    "OutOfMemory",
    "PipelineError",
    "ReadOnlyError",
    "RedispatchRecursion",
    "RegistrationError",
    "SchemaError",
    "ShapeError",
    "TraceError",
    "UnknownKey",
    "UnknownOperator",
    "UnknownTensor",
]


class Error(Exception):
    """The root of every error that keyfold itself raises."""


class DispatchError(Error):
    """A call, a registration or a key set that can't work."""


class SchemaError(DispatchError, ValueError):
    """Schema text or a name that doesn't parse."""


class BindingError(DispatchError, TypeError):
    """Arguments that don't bind: arity, keyword, type, None for a tensor."""


class KernelReturnError(DispatchError, TypeError):
    """A kernel returned the wrong number or kind of values."""


class UnknownOperator(DispatchError, AttributeError):
    """No operator or overload of that name."""

    def __init__(self, *args: object) -> None:
        # CPython adds a suggestion of its own to an AttributeError that doesn't say its object.
        super().__init__(*args, obj=None)


class UnknownKey(DispatchError, ValueError):
    """No dispatch key of that name, or no place left for a new one."""


class EmptyKeySetError(DispatchError, ValueError):
    """A call or redispatch without any dispatch key."""


class MissingKernel(DispatchError, NotImplementedError):
    """No kernel for the key that was chosen."""


class RegistrationError(DispatchError, ValueError):
    """A registration that contradicts another one or its schema."""


class OperatorRemoved(DispatchError, LookupError):
    """The operator, overload, handle or kernel was removed."""


class RedispatchRecursion(DispatchError, RecursionError):
    """Endless redispatch, stopped before the stack ends."""


class GuardError(DispatchError, RuntimeError):
    """Local key guards closed out of order or on another thread."""


class KernelPanic(Error, RuntimeError):
    """A native kernel panicked; the panic was contained."""


class KernelFailed(Error, RuntimeError):
    """A native kernel reported a failure."""


class DeviceError(Error, ValueError):
    """Arguments on different devices, or a device that isn't there."""


class DTypeError(Error, TypeError):
    """A dtype that isn't supported there."""


class ShapeError(Error, ValueError):
    """Shapes that don't fit each other, or whose element count overflows."""


class InvalidValue(Error, ValueError):
    """A value out of its range."""


class UnknownTensor(InvalidValue, KeyError):
    """A graph, or a plan's results, have no tensor of a key, or several of a name."""

    # KeyError shows the message as a literal.
    __str__ = Exception.__str__


class IndexOutOfRange(Error, IndexError):
    """An index or axis out of range."""


class ReadOnlyError(Error, ValueError):
    """A write to read-only memory."""


class ExchangeError(Error, BufferError):
    """A malformed or already consumed DLPack exchange."""


class OutOfMemory(Error, MemoryError):
    """Memory for a buffer can't be had."""


class LibraryLoadError(Error, OSError):
    """A shared library, or a symbol in it, can't be loaded."""


class KernelLoadError(Error, ImportError):
    """An installed package that offers kernels for a namespace can't be loaded."""


class NotSupported(Error, NotImplementedError):
    """A backend lacks the operation."""


class GradientError(Error, RuntimeError):
    """A gradient can't be computed: no derivative, no graph, a saved tensor changed since."""


class ExpressionError(Error, ValueError):
    """The text of an expression doesn't parse; a caret shows where."""


class TraceError(Error, ValueError):
    """A trace that can't be recorded, or a graph that can't be read or replayed."""


class OpCheckError(Error, AssertionError):
    """`opcheck` found an operator that doesn't keep its promises; `report` says which."""

    def __init__(self, message: str, report: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.report = {} if report is None else report


class PipelineError(Error, RuntimeError):
    """Deferred work that can't be recorded, or that was given up before it ran."""


class CudnnError(Error, RuntimeError):
    """cuDNN refused a graph or a plan. For the cuDNN backend to raise."""


BY_KIND: dict[str, type[Exception]] = {
    "Schema": SchemaError,
    "Binding": BindingError,
    "Return": KernelReturnError,
    "UnknownOperator": UnknownOperator,
    "UnknownKey": UnknownKey,
    "EmptyKeySet": EmptyKeySetError,
    "MissingKernel": MissingKernel,
    "Registration": RegistrationError,
    "OperatorRemoved": OperatorRemoved,
    "Recursion": RedispatchRecursion,
    "KernelPanic": KernelPanic,
    "KernelFailed": KernelFailed,
    "Guard": GuardError,
    "Device": DeviceError,
    "DType": DTypeError,
    "Shape": ShapeError,
    "Value": InvalidValue,
    "Index": IndexOutOfRange,
    "ReadOnly": ReadOnlyError,
    "Exchange": ExchangeError,
    "Memory": OutOfMemory,
    "Library": LibraryLoadError,
    "NotSupported": NotSupported,
    "Gradient": GradientError,
    "Expression": ExpressionError,
    "Trace": TraceError,
    "Pipeline": PipelineError,
}
