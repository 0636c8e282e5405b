"""Optimizers: each step is one operator, which changes the parameters and its state in one pass.

>>> x = kf.asarray([1.0, -2.0]).requires_grad_()
>>> optimizer = kf.optim.SGD([x], lr=0.1)
>>> (x * x).sum().backward()
>>> optimizer.step()
>>> x.tolist()
[0.8, -1.6]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyfold import _core, _foreign_names
from keyfold._autograd import no_grad
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, InvalidValue

__all__ = ["SGD", "Adam"]

_HALVES = ("float16", "bfloat16")


class _Optimizer:
    """What optimizers have in common: the parameters, the state of each, and both as plain data."""

    # The names of the numbers that a step takes, and that `state_dict` has.
    _options: tuple[str, ...] = ()

    def __init__(self, params: Iterable[_core.Tensor]) -> None:
        name = type(self).__name__
        if isinstance(params, _core.Tensor):
            raise BindingError(f"{name}(): argument 'params' is one tensor; give a list of them")
        self.params = list(params)
        for i, param in enumerate(self.params):
            if not isinstance(param, _core.Tensor):
                raise BindingError(
                    f"{name}(): params[{i}] is {type(param).__name__}; an optimizer changes "
                    "tensors of keyfold, which keyfold.asarray() makes"
                )
        if not self.params:
            raise InvalidValue(f"{name}(): argument 'params' is empty; there is nothing to change")
        if len({id(param) for param in self.params}) < len(self.params):
            raise InvalidValue(f"{name}(): argument 'params' has a tensor twice; give each once")
        self._state: list[dict[str, Any]] = [{} for _ in self.params]

    def _check_options(self) -> None:
        """Let the operator refuse options that no step can have, before the first one."""
        nothing = [_empty("float32") for _ in range(5)]
        self._update(nothing[0], nothing[1], self._new_state(nothing[0]), 1)

    def _new_state(self, param: _core.Tensor) -> dict[str, _core.Tensor]:
        raise NotImplementedError

    def _update(
        self, param: _core.Tensor, grad: _core.Tensor, state: dict[str, Any], step: int
    ) -> None:
        raise NotImplementedError

    def step(self) -> None:
        """Change each parameter that has a gradient, by its gradient.

        Raises:
            Error: a gradient, or an option that was changed, is one that the step refuses. The
                parameters before that one are changed already.
            NotSupported: the device doesn't have steps of optimizers.
        """
        with no_grad():
            for param, state in zip(self.params, self._state, strict=True):
                grad = param.grad
                if grad is None:
                    continue
                if not state:
                    state.update(step=0, **self._new_state(param))
                self._update(param, grad, state, state["step"] + 1)
                state["step"] += 1

    def zero_grad(self) -> None:
        """Forget the gradients, so that the next backward starts anew."""
        for param in self.params:
            param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the options and a copy of the state as plain data, which pickles.

        Returns:
            A dict with `options`, and with `state`: a dict for each parameter, which is empty
            before its first step, with the number of its steps and its tensors by name.
        """
        with no_grad():
            state = [{key: _copied(value) for key, value in one.items()} for one in self._state]
        return {"options": {name: getattr(self, name) for name in self._options}, "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, perhaps in another process.

        Args:
            state: the options and the state. The latter is copied, to the parameters' devices.

        Raises:
            BindingError: it isn't what this class returns.
            InvalidValue: it doesn't fit the parameters.
        """
        name = f"{type(self).__name__}.load_state_dict()"
        found = state if isinstance(state, dict) else {}
        options, states = found.get("options"), found.get("state")
        if not isinstance(options, dict) or set(options) != set(self._options):
            raise BindingError(
                f"{name}: argument 'state' must be what {type(self).__name__}.state_dict() "
                f"returns, with the options {', '.join(self._options)}"
            )
        if not isinstance(states, list) or len(states) != len(self.params):
            count = len(states) if isinstance(states, list) else "no"
            raise InvalidValue(
                f"{name}: the state is of {count} parameters, and there are {len(self.params)}"
            )
        loaded = []
        with no_grad():
            for i, (param, one) in enumerate(zip(self.params, states, strict=True)):
                for key, value in one.items():
                    if isinstance(value, _core.Tensor) and value.shape != param.shape:
                        raise InvalidValue(
                            f"{name}: {key} of parameter {i} has shape {value.shape}, and the "
                            f"parameter {param.shape}"
                        )
                loaded.append({key: _copied(value, param) for key, value in one.items()})
        self._state = loaded
        for option, value in options.items():
            setattr(self, option, value)

    def __repr__(self) -> str:
        options = "".join(f", {name}={getattr(self, name)!r}" for name in self._options)
        return f"{type(self).__name__}({len(self.params)} parameters{options})"


def _copied(value: Any, param: _core.Tensor | None = None) -> Any:
    """Return a copy of a tensor, on the device of a parameter; other values as they are."""
    if not isinstance(value, _core.Tensor):
        return value
    if param is not None and value.device != param.device:
        return value.to(param.device)
    return _default.ops.aten.clone(value)


def _empty(dtype: Any) -> _core.Tensor:
    made: _core.Tensor = _default.ops.aten.empty((0,), dtype=dtype, device="meta")
    return made


def _zeros_like(param: _core.Tensor) -> _core.Tensor:
    """Return the state of a parameter before the first step; that of halves is float32."""
    dtype = "float32" if str(param.dtype) in _HALVES else param.dtype
    made: _core.Tensor = _default.ops.aten.zeros(param.shape, dtype=dtype, device=param.device)
    return made


class Adam(_Optimizer):
    """Adam (D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2015).

    The state of halves is float32. With `decoupled`, the weight decay shrinks the parameters
    instead of adding to the gradients (I. Loshchilov, F. Hutter, "Decoupled weight decay
    regularization", 2019: AdamW); with `amsgrad`, a step divides by the greatest second moment of
    all steps (S. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and beyond", 2018).

    Args:
        params: the tensors to change: floats, with a gradient in `grad`.
        lr: the learning rate, at least 0. It and the other numbers are attributes that can be set.
        betas: the factors of both moments per step, at least 0 and less than 1.
        eps: the number that is added to the root of the second moment.
        weight_decay: the weight decay.
        decoupled: whether the weight decay is decoupled from the gradients.
        amsgrad: whether a step divides by the greatest second moment of all steps.
        maximize: whether the steps ascend.

    Raises:
        BindingError: a parameter isn't a tensor of keyfold.
        InvalidValue: a number is out of range, or there are no parameters, or one twice.
    """

    _options = (
        "lr", "betas", "eps", "weight_decay", "decoupled", "amsgrad", "maximize",
    )  # fmt: skip

    def __init__(
        self,
        params: Iterable[_core.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled: bool = False,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.weight_decay, self.decoupled = weight_decay, decoupled
        self.amsgrad, self.maximize = amsgrad, maximize
        self._check_options()

    def _new_state(self, param: _core.Tensor) -> dict[str, _core.Tensor]:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.amsgrad else [])]
        return {name: _zeros_like(param) for name in names}

    def _update(
        self, param: _core.Tensor, grad: _core.Tensor, state: dict[str, Any], step: int
    ) -> None:
        if self.amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = _zeros_like(param)
        try:
            beta1, beta2 = self.betas
        except (TypeError, ValueError):
            raise BindingError(
                f"Adam(): argument 'betas' must be two numbers in a tuple, not {self.betas!r}"
            ) from None
        _default.ops.keyfold.adam_step_(
            param,
            grad,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["max_exp_avg_sq"] if self.amsgrad else None,
            step=step,
            lr=self.lr,
            beta1=beta1,
            beta2=beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
            maximize=self.maximize,
        )


class SGD(_Optimizer):
    """Gradient descent, with momentum if that isn't 0.

    The momentum is as in PyTorch: a sum of gradients without the learning rate, which begins with
    the first gradient (I. Sutskever and others, "On the importance of initialization and momentum
    in deep learning", 2013). That of halves is float32.

    Args:
        params: the tensors to change: floats, with a gradient in `grad`.
        lr: the learning rate, at least 0. It and the other numbers are attributes that can be set.
        momentum: the factor of the momentum per step.
        dampening: the part of a gradient that the momentum leaves out.
        weight_decay: the weight decay, which is added to the gradients.
        nesterov: whether a step looks ahead by Nesterov's rule.
        maximize: whether the steps ascend.

    Raises:
        BindingError: a parameter isn't a tensor of keyfold.
        InvalidValue: a number is out of range, or there are no parameters, or one twice.
    """

    _options = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def __init__(
        self,
        params: Iterable[_core.Tensor],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params)
        self.lr, self.momentum, self.dampening = lr, momentum, dampening
        self.weight_decay, self.nesterov, self.maximize = weight_decay, nesterov, maximize
        self._check_options()

    def _new_state(self, param: _core.Tensor) -> dict[str, _core.Tensor]:
        return {"momentum_buffer": _zeros_like(param)} if self.momentum else {}

    def _update(
        self, param: _core.Tensor, grad: _core.Tensor, state: dict[str, Any], step: int
    ) -> None:
        if self.momentum and "momentum_buffer" not in state:
            # The momentum begins when it is switched on.
            state.update(self._new_state(param))
            step = 1
        _default.ops.keyfold.sgd_step_(
            param,
            grad,
            state["momentum_buffer"] if self.momentum else None,
            step=step,
            lr=self.lr,
            momentum=self.momentum,
            dampening=self.dampening,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            maximize=self.maximize,
        )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _foreign_names.attribute_error(name, __all__, __name__)
