"""A function of keyfold tensors as a torch operator: its kernels, shapes and derivative."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from keyfold import _core
from keyfold._errors import GradientError, OperatorRemoved
from keyfold.torch import _library
from keyfold.torch._gradients import gradients, signed, unsigned
from keyfold.torch._results import device_of, extent, own
from keyfold.torch._schema import MISSING, Argument, Schema
from keyfold.torch._values import (
    leaves,
    plain_to_keyfold,
    resolved,
    stand_in,
    tensor_to_keyfold,
    torch_dtype,
    torch_leaves,
    tree_map,
)

lock = threading.RLock()
# Where keyfold's random numbers were before this thread's last call, if it drew any.
_drawn = threading.local()


class TorchOperator(ABC):
    """An operator in torch whose kernels call keyfold.

    Attributes:
        schema: what torch knows.
        op: the `OpOverload`.
    """

    # Whether results are copied always, since they may be views.
    copies = False
    # Whether `run` wants keyfold's own tensors; else torch's, which operators take as they are.
    takes_own = False
    # The function for calls with positional arguments alone, where they need no preparation.
    direct: Callable[..., Any] | None = None

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.closed = False
        self._is_written = [argument.is_written for argument in schema.arguments]
        self._derivative: Derivative | None = None
        self._library = _library.define(schema)
        try:
            self.op = _library.overload(schema)
            self._register()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def run(self, values: list[Any]) -> Any:
        """Compute the results of values of keyfold, one per argument; MISSING for defaults."""

    @abstractmethod
    def shapes(self, values: list[Any]) -> Any:
        """Give the results of torch's values without data, as torch tensors."""

    @property
    def differentiable(self) -> bool:
        """Whether it has gradients in torch, as far as the schema tells."""
        return (
            not self.schema.written
            and any(a.is_tensor for a in self.schema.arguments)
            and any(r.is_tensor for r in self.schema.returns)
        )

    def close(self) -> None:
        """Take the operator back, and its derivative."""
        with lock:
            if self.closed:
                return
            self.closed = True
            derivative, self._derivative = self._derivative, None
            if derivative is not None:
                derivative.close()
            self._library._destroy()

    def _register(self) -> None:
        name, library = self.schema.local_name, self._library
        has_tensors = any(a.is_tensor for a in self.schema.arguments)
        # Without tensors, no key says where a call goes.
        for key in ("CPU", "CUDA") if has_tensors else ("CompositeExplicitAutograd",):
            library.impl(name, self._kernel, key)
        torch.library.register_fake(self.schema.full_name, self._fake, lib=library)
        if self.schema.written:
            library.impl(name, self._refuse_gradients, "Autograd", with_keyset=True)
        elif self.differentiable:
            torch.library.register_autograd(
                self.schema.full_name, self._backward, setup_context=self._set_up, lib=library
            )

    # The kernel.

    def _kernel(self, *args: Any, **kwargs: Any) -> Any:
        if self.direct is not None and not kwargs:
            return self._call_directly(self.direct, args)
        values = self.schema.bind(args, kwargs)
        copies: list[tuple[Any, Any]] = []
        given = [
            tree_map(self._to_keyfold, value)
            if not is_written
            else tree_map(lambda leaf: self._written_to_keyfold(leaf, copies), value)
            for is_written, value in zip(self._is_written, values, strict=True)
        ]
        before = _core.get_rng_state()
        result = self.run(given)
        _drawn.state = None if before == _core.get_rng_state() else before
        for tensor, copy in copies:
            tensor.detach().copy_(copy)
        self._note_writes(values)
        return self._results(result, values)

    def _call_directly(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """As `_kernel`, for what most calls are: positional, one tensor as result, no writes."""
        given = [
            resolved(arg) if isinstance(arg, torch.Tensor) else tree_map(self._to_keyfold, arg)
            for arg in args
        ]
        before = _core.get_rng_state()
        result = function(*given)
        _drawn.state = None if before == _core.get_rng_state() else before
        return own(result, [extent(t) for t in torch_leaves(args)], copies=self.copies)

    def _to_keyfold(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return plain_to_keyfold(leaf)
        return tensor_to_keyfold(leaf) if self.takes_own else resolved(leaf)

    def _written_to_keyfold(self, leaf: Any, copies: list[tuple[Any, Any]]) -> Any:
        """As above; a copy of an argument is noted in `copies`, to be copied back."""
        given = self._to_keyfold(leaf)
        if isinstance(leaf, torch.Tensor) and (leaf.is_conj() or leaf.is_neg()):
            copies.append((leaf, given))
        return given

    def _note_writes(self, values: list[Any]) -> None:
        """Tell torch's Autograd which tensors have other contents now."""
        for argument, value in zip(self.schema.arguments, values, strict=True):
            if argument.is_written:
                for tensor in torch_leaves(value):
                    if not tensor.is_inference():
                        torch.autograd.graph.increment_version(tensor)

    def _results(self, result: Any, values: list[Any]) -> Any:
        # torch demands results with memory of their own.
        taken = [extent(tensor) for tensor in torch_leaves(values)]
        return self._per_return(result, values, lambda leaf: own(leaf, taken, copies=self.copies))

    def _per_return(self, result: Any, values: list[Any], function: Any) -> Any:
        returns = self.schema.returns
        if not returns:
            return None
        items = [result] if len(returns) == 1 else list(result)
        made = [
            self._written_argument(declared, values) if declared.alias else tree_map(function, item)
            for declared, item in zip(returns, items, strict=True)
        ]
        return made[0] if len(returns) == 1 else tuple(made)

    def _written_argument(self, declared: Argument, values: list[Any]) -> Any:
        """The argument that a result is."""
        pairs = zip(self.schema.arguments, values, strict=True)
        return next(value for a, value in pairs if a.is_written and a.sets & declared.sets)

    # Shapes without data.

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        _drawn.state = None
        values = self.schema.bind(args, kwargs)
        return self._per_return(self.shapes(values), values, lambda leaf: leaf)

    # Gradients.

    def _refuse_gradients(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            values = self.schema.bind(args, kwargs)
            for argument, value in zip(self.schema.arguments, values, strict=True):
                if any(tensor.requires_grad for tensor in torch_leaves(value)):
                    raise GradientError(
                        f"{self.schema.full_name} writes to its arguments, so that torch can't "
                        f"differentiate it, and argument {argument.name!r} requires grad: call it "
                        "under torch.no_grad(), or with tensors that need no gradient"
                    )
        return _library.below_autograd(self.op, keyset, args, kwargs)

    def _set_up(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        tensors: list[Any] = []

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensors.append(leaf)
            return _Saved(len(tensors) - 1)

        values = self.schema.bind(tuple(inputs), keyword_only_inputs or {})
        for argument, value in zip(self.schema.arguments, values, strict=True):
            absent = isinstance(value, list) and any(item is None for item in value)
            if absent and any(tensor.requires_grad for tensor in torch_leaves(value)):
                raise GradientError(
                    f"{self.schema.full_name}: argument {argument.name!r} has None beside tensors "
                    "that require grad, and torch doesn't differentiate such lists: detach them"
                )
        ctx.keyfold_values = [tree_map(place, value) for value in values]
        state, _drawn.state = getattr(_drawn, "state", None), None
        ctx.keyfold_random = [signed(word) for word in state or ()]
        ctx.save_for_backward(*tensors)

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        values = [
            tree_map(lambda leaf: saved[leaf.place] if isinstance(leaf, _Saved) else leaf, value)
            for value in ctx.keyfold_values
        ]
        needs = list(ctx.needs_input_grad)
        # torch leaves out arguments at the end that have their default's value.
        passed = len(needs)
        needs += [False] * (len(values) - len(needs))
        needed: list[bool] = []
        for need, value in zip(needs, values, strict=True):
            wanted = list(leaves(need))
            for i, leaf in enumerate(leaves(value)):
                if isinstance(leaf, torch.Tensor):
                    needed.append(bool(wanted[i] if len(wanted) > 1 else wanted[0]))
        above = list(leaves(list(grads)))
        given = [grad is not None for grad in above]
        above = [grad for grad in above if grad is not None]
        derivative = self.derivative().op
        found = iter(derivative(above, given, needed, ctx.keyfold_random, *values))
        wanted_now = iter(needed)

        def gradient(leaf: Any) -> Any:
            return next(found) if isinstance(leaf, torch.Tensor) and next(wanted_now) else None

        pairs = zip(self.schema.arguments, values, strict=True)
        made = [(argument, value, tree_map(gradient, value)) for argument, value in pairs]
        return tuple(
            # torch wants a list back for a list of tensors alone, and so for an empty one.
            None if isinstance(value, list) and not _all_tensors(value) else one
            for argument, value, one in made[:passed]
            if not argument.keyword
        )

    def derivative(self) -> Derivative:
        """The operator that computes this one's gradients, defined when it is first needed."""
        with lock:
            if self.closed:
                raise OperatorRemoved(
                    f"{self.schema.full_name} was taken back from torch before its backward ran"
                )
            if self._derivative is None:
                self._derivative = Derivative(self)
            return self._derivative


class Derivative(TorchOperator):
    """The gradients of an operator, as an operator.

    Its arguments are gradients of the results, for each result whether its gradient is among them
    (torch doesn't differentiate lists that have None in them), for each tensor whether its gradient
    is wanted, where keyfold's random numbers were before the call, and the operator's arguments;
    its result has the wanted gradients, contiguous.
    """

    takes_own = True

    def __init__(self, of: TorchOperator) -> None:
        self._of = of
        names = {argument.name for argument in of.schema.arguments}
        own = []
        for kind, name in (
            ("Tensor[]", "grads"),
            ("bool[]", "given"),
            ("bool[]", "needed"),
            ("int[]", "random"),
        ):
            while name in names:
                name += "_"
            own.append(Argument(kind, "", name))
        arguments = [Argument(a.type, "", a.name) for a in of.schema.arguments]
        super().__init__(
            Schema(
                of.schema.namespace,
                f"{of.schema.name}_backward",
                of.schema.overload,
                (*own, *arguments),
                (Argument("Tensor[]", "", ""),),
            )
        )

    def run(self, values: list[Any]) -> Any:
        """The gradients of a call that is made again, with the random numbers of the first."""
        above, has_grad, needed, random, *rest = values
        left = iter(above)
        grads = [next(left) if has else None for has in has_grad]
        now = _core.get_rng_state()
        if random:
            _core.set_rng_state((unsigned(random[0]), unsigned(random[1])))
        try:
            found = gradients(self._of.run, rest, needed, grads)
            drew = not random and _core.get_rng_state() != now
        finally:
            if random:
                _core.set_rng_state(now)
        if drew:
            raise GradientError(
                f"{self._of.schema.full_name} draws random numbers, and in a compiled function its "
                "derivative can't draw the same again: call it outside of torch.compile, or draw "
                "the numbers before the call"
            )
        return [gradient.contiguous() for gradient in found]

    def shapes(self, values: list[Any]) -> Any:
        """Each gradient looks like what it is the gradient of."""
        _grads, _given, needed, _random, *rest = values
        return [
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for tensor, wanted in zip(torch_leaves(rest), needed, strict=True)
            if wanted
        ]


class Forward(TorchOperator):
    """A keyfold operator in torch."""

    def __init__(self, operator: _core.Operator, inner: Schema, schema: Schema, fake: Any) -> None:
        self._operator = operator
        self._inner = inner
        self._given_fake = fake
        self.copies = inner.is_view
        pairs = zip(inner.arguments, schema.arguments, strict=True)
        if (
            all(mine.type == theirs.type and not mine.keyword for mine, theirs in pairs)
            and not schema.written
            and [result.type for result in schema.returns] == ["Tensor"]
        ):
            self.direct = operator
        super().__init__(schema)

    def run(self, values: list[Any]) -> Any:
        """Call the keyfold operator."""
        args, kwargs = self._arguments(values)
        return self._operator(*args, **kwargs)

    def _arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        # None stands for the defaults that torch can't be told.
        pairs = zip(self._inner.arguments, values, strict=True)
        return self._inner.split(
            [
                MISSING if value is None and not argument.type.endswith("?") else value
                for argument, value in pairs
            ]
        )

    def shapes(self, values: list[Any]) -> Any:
        """Ask the operator's Meta kernel, or the function that was given."""
        if self._given_fake is not None:
            args, kwargs = self.schema.split(values)
            return self._given_fake(*args, **kwargs)

        def like(leaf: Any) -> Any:
            return stand_in(leaf) if isinstance(leaf, torch.Tensor) else plain_to_keyfold(leaf)

        args, kwargs = self._arguments([tree_map(like, value) for value in values])
        device = device_of(self.schema, values)
        return tree_map(
            lambda leaf: self._empty(leaf, device),
            _core._infer_meta(self._operator, tuple(args), kwargs),
        )

    def _empty(self, like: Any, device: Any) -> Any:
        if not isinstance(like, _core.Tensor):
            return like
        dtype = torch_dtype(like.dtype)
        if self.copies:
            return torch.empty(like.shape, dtype=dtype, device=device)
        return torch.empty_strided(like.shape, like.strides, dtype=dtype, device=device)


def _all_tensors(value: list[Any]) -> bool:
    return all(isinstance(item, torch.Tensor) for item in value)


class _Saved:
    """Stands for a tensor that a context keeps."""

    def __init__(self, place: int) -> None:
        self.place = place
