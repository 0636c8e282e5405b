"""A torch operator as a keyfold operator: its kernels, shapes and derivative."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from keyfold import _core
from keyfold._autograd import register_autograd
from keyfold._dispatch._registration import define, get_op, impl
from keyfold._errors import (
    GradientError,
    NotSupported,
    OperatorRemoved,
    ReadOnlyError,
    ShapeError,
)
from keyfold._layers._fake import register_fake
from keyfold.torch._exported import lock
from keyfold.torch._library import keep, schema_in_torch
from keyfold.torch._schema import MISSING, Argument, Schema, parse
from keyfold.torch._values import (
    leaves,
    meta_like,
    plain_to_torch,
    resolved,
    tensor_to_torch,
    torch_leaves,
    tree_map,
)


class KeyfoldOperator(ABC):
    """An operator in keyfold whose kernels call torch.

    Attributes:
        schema: what keyfold knows.
        operator: keyfold's operator.
    """

    def __init__(self, schema: Schema, keys: Sequence[Any]) -> None:
        self.schema = schema
        self.keys = tuple(keys)
        self._derivative: Derivative | None = None
        self._handles: list[_core.Handle] = []
        try:
            self._handles.append(define(schema.text(qualified=True)))
            self.operator = get_op(schema.full_name)
            for key in self.keys:
                self._handles.append(impl(self.operator, key, self._kernel))
            self._handles.append(register_fake(self.operator, self._fake))
            if self.differentiable:
                self._handles.append(
                    register_autograd(self.operator, self._backward, setup_context=self._set_up)
                )
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def run(self, values: list[Any]) -> Any:
        """Compute the results of torch's values, one per argument; MISSING for defaults."""

    @property
    def differentiable(self) -> bool:
        """Whether it has gradients, as far as the schema tells."""
        return (
            not self.schema.written
            and any(a.is_tensor for a in self.schema.arguments)
            and any(r.is_tensor for r in self.schema.returns)
        )

    def close(self) -> None:
        """Take the operator back, and its derivative."""
        with lock:
            derivative, self._derivative = self._derivative, None
            if derivative is not None:
                derivative.close()
            for handle in reversed(self._handles):
                handle.remove()
            self._handles.clear()

    # Kernels.

    def _kernel(self, *args: Any, **kwargs: Any) -> Any:
        values = self.schema.bind(args, kwargs)
        copies: list[tuple[Any, Any]] = []
        given = []
        for argument, value in zip(self.schema.arguments, values, strict=True):
            if argument.is_written and value is not MISSING:
                given.append(tree_map(lambda leaf: self._writable(leaf, copies), value))
            else:
                given.append(self._to_torch(argument, value))
        shapes = [tuple(tensor.shape) for tensor in self._written_tensors(given)]
        # torch records gradients for its own tensors only.
        recorded = any(tensor.requires_grad for tensor in torch_leaves(values))
        with contextlib.nullcontext() if recorded else torch.no_grad():
            result = self.run(given)
        self._check_shapes(given, shapes)
        for original, copy in copies:
            _core.from_dlpack(original).copy_(_core.from_dlpack(copy))
        of_torch = any(True for _ in torch_leaves(values))
        return self._per_return(
            result, values, lambda leaf: leaf if of_torch else _to_keyfold(leaf)
        )

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        values = self.schema.bind(args, kwargs)
        given = [
            self._to_torch(argument, value)
            for argument, value in zip(self.schema.arguments, values, strict=True)
        ]
        with torch.no_grad():
            result = self.shapes(given)
        return self._per_return(result, values, _meta_to_keyfold)

    def shapes(self, values: list[Any]) -> Any:
        """The results without data, of tensors on meta."""
        return self.run(values)

    def _to_torch(self, argument: Argument, value: Any) -> Any:
        if value is MISSING:
            return value
        if not argument.is_tensor:
            return tree_map(lambda leaf: plain_to_torch(leaf, argument.type), value)
        return tree_map(lambda leaf: None if leaf is None else tensor_to_torch(leaf), value)

    def _writable(self, leaf: Any, copies: list[tuple[Any, Any]]) -> Any:
        """A tensor on the memory that is to be written to, or one to be copied back."""
        if leaf is None or isinstance(leaf, torch.Tensor):
            return leaf
        own = leaf if isinstance(leaf, _core.Tensor) else _core.from_dlpack(leaf)
        if own.readonly:
            raise ReadOnlyError(
                f"{self.schema.full_name} writes to an argument that is read-only: give it a copy"
            )
        tensor = tensor_to_torch(own)
        if own.device.type != "meta" and own.size and tensor.data_ptr() != own.data_ptr():
            copies.append((own, tensor))
        return tensor

    def _written_tensors(self, given: list[Any]) -> list[Any]:
        pairs = zip(self.schema.arguments, given, strict=True)
        return [t for a, value in pairs if a.is_written for t in torch_leaves(value)]

    def _check_shapes(self, given: list[Any], shapes: list[tuple[int, ...]]) -> None:
        for tensor, shape in zip(self._written_tensors(given), shapes, strict=True):
            if tuple(tensor.shape) != shape:
                raise ShapeError(
                    f"{self.schema.full_name} gave an argument of shape {shape} the shape "
                    f"{tuple(tensor.shape)}, and arrays outside of torch keep theirs: give it one "
                    "of that shape"
                )

    def _per_return(self, result: Any, values: list[Any], function: Any) -> Any:
        returns = self.schema.returns
        if not returns:
            return None
        items = [result] if len(returns) == 1 else list(result)
        made = []
        for declared, item in zip(returns, items, strict=True):
            if "!" in declared.alias:
                pairs = zip(self.schema.arguments, values, strict=True)
                made.append(next(v for a, v in pairs if a.is_written and a.sets & declared.sets))
            else:
                made.append(tree_map(function, item))
        return made[0] if len(returns) == 1 else tuple(made)

    # Gradients.

    def _set_up(self, ctx: Any, inputs: Any, output: Any) -> None:
        tensors: list[Any] = []

        def place(leaf: Any) -> Any:
            if leaf is None:
                return None
            tensors.append(leaf)
            return len(tensors) - 1

        ctx.values = [
            tree_map(place, value) if argument.is_tensor else value
            for argument, value in zip(self.schema.arguments, inputs, strict=True)
        ]
        ctx.save_for_backward(*tensors)

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        values = [
            tree_map(lambda at: None if at is None else saved[at], value)
            if argument.is_tensor
            else value
            for argument, value in zip(self.schema.arguments, ctx.values, strict=True)
        ]
        needed: list[bool] = []
        for argument, need, value in zip(
            self.schema.arguments, ctx.needs_input_grad, values, strict=True
        ):
            if argument.is_tensor:
                needed += [
                    need and _has_gradient(leaf) for leaf in leaves(value) if leaf is not None
                ]
        found = iter(self.derivative().operator(list(grads), needed, *values))
        wanted = iter(needed)

        def gradient(leaf: Any) -> Any:
            return next(found) if leaf is not None and next(wanted) else None

        return tuple(
            tree_map(gradient, value) if argument.is_tensor else None
            for argument, value in zip(self.schema.arguments, values, strict=True)
        )

    def derivative(self) -> Derivative:
        """The operator that computes this one's gradients, defined when it is first needed."""
        with lock:
            if self._derivative is None:
                self._derivative = Derivative(self)
            return self._derivative


class Forward(KeyfoldOperator):
    """A torch operator in keyfold."""

    def __init__(self, op: Any, schema: Schema, keys: Sequence[Any]) -> None:
        self.op = op
        self._theirs = parse(str(op._schema))
        if self._theirs.namespace not in ("aten", "prim", "prims"):
            keep(self._theirs)
        super().__init__(schema, keys)

    def run(self, values: list[Any]) -> Any:
        """Call the torch operator."""
        args, kwargs = self.schema.split(values)
        try:
            return self.op(*args, **kwargs)
        except RuntimeError as error:
            # torch's own message asks to report a bug to PyTorch.
            if schema_in_torch(self._theirs) is None:
                raise OperatorRemoved(
                    f"{self.schema.full_name} is {self._theirs.full_name} of torch, which was "
                    "taken back there"
                ) from error
            raise

    def shapes(self, values: list[Any]) -> Any:
        """Call it on meta tensors, or, where torch can't, on fake ones."""
        try:
            return self.run(values)
        except NotImplementedError:
            from torch._subclasses.fake_tensor import FakeTensorMode

            with FakeTensorMode():
                like = [
                    tree_map(
                        lambda leaf: (
                            torch.empty_strided(
                                leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu"
                            )
                            if isinstance(leaf, torch.Tensor)
                            else leaf
                        ),
                        value,
                    )
                    for value in values
                ]
                return self.run(like)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return torch.Tag.nondeterministic_seeded in self.op.tags


class Derivative(KeyfoldOperator):
    """The gradients of an operator, as an operator.

    Its arguments are the gradients of the results, for each tensor whether its gradient is wanted,
    and the operator's arguments; its result has the wanted gradients.
    """

    def __init__(self, of: KeyfoldOperator) -> None:
        self._of = of
        names = {argument.name for argument in of.schema.arguments}
        own = []
        for kind, name in (("Tensor?[]", "grads"), ("bool[]", "needed")):
            while name in names:
                name += "_"
            own.append(Argument(kind, "", name))
        arguments = [Argument(a.type, "", a.name) for a in of.schema.arguments]
        schema = Schema(
            of.schema.namespace,
            f"{of.schema.name}_backward",
            of.schema.overload,
            (*own, *arguments),
            (Argument("Tensor[]", "", ""),),
        )
        super().__init__(schema, of.keys)

    def run(self, values: list[Any]) -> Any:
        """The gradients of a call that is made again, recorded by torch."""
        grads, needed, *rest = values
        if isinstance(self._of, Forward) and self._of.is_random:
            raise GradientError(
                f"{self._of.schema.full_name} draws random numbers in torch, and its derivative "
                "can't draw the same again"
            )
        wanted = iter(needed)
        variables: list[Any] = []
        again = any(tensor.requires_grad for tensor in torch_leaves([grads, rest]))

        def variable(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not next(wanted):
                return leaf
            if leaf.is_inference():
                leaf = leaf.clone()
            one = leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_()
            variables.append(one)
            return one

        with torch.inference_mode(False), torch.enable_grad():
            results = leaves(self._of.run([tree_map(variable, value) for value in rest]))
            pairs = [
                (result, grad)
                for result, grad in zip(results, grads, strict=True)
                if grad is not None and isinstance(result, torch.Tensor) and result.requires_grad
            ]
            self._require_derivative(result for result, _ in pairs)
            found: Sequence[Any] = [None] * len(variables)
            if pairs and variables:
                found = torch.autograd.grad(
                    [result for result, _ in pairs],
                    variables,
                    [grad for _, grad in pairs],
                    create_graph=again,
                    allow_unused=True,
                )
        return [
            torch.zeros_like(variable) if grad is None else grad
            for variable, grad in zip(variables, found, strict=True)
        ]

    def _require_derivative(self, results: Any) -> None:
        for result in results:
            if result.grad_fn is not None and result.grad_fn.name() == "WarnNotImplemented":
                raise GradientError(
                    f"{self._of.schema.full_name} has no derivative in torch: register one with "
                    "torch.library.register_autograd"
                )

    def shapes(self, values: list[Any]) -> Any:
        """Each gradient looks like what it is the gradient of."""
        _grads, needed, *rest = values
        pairs = zip(torch_leaves(rest), needed, strict=True)
        return [torch.empty_like(tensor) for tensor, wanted in pairs if wanted]


def _has_gradient(leaf: Any) -> bool:
    name = getattr(leaf.dtype, "name", None) or str(leaf.dtype)
    return name.removeprefix("torch.").startswith(("float", "bfloat", "complex"))


def _to_keyfold(leaf: Any) -> Any:
    """A result of torch as keyfold's tensor, which the caller gets in their own library."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided:
        raise NotSupported(
            f"a torch operator gave a tensor of layout {leaf.layout}, which keyfold has not"
        )
    return _core.from_dlpack(resolved(leaf))


def _meta_to_keyfold(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return meta_like(list(leaf.shape), list(leaf.stride()), leaf.dtype)
