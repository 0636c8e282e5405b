"""Derivatives: `grad`, `no_grad`, `checkpoint`, `register_autograd`, and their checks."""

from keyfold._autograd._grad import checkpoint, grad, no_grad, register_autograd, value_and_grad
from keyfold._autograd._gradcheck import gradcheck, gradgradcheck

__all__ = [
    "checkpoint",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "no_grad",
    "register_autograd",
    "value_and_grad",
]
