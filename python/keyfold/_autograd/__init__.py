"""Derivatives: `grad`, `jvp`, Jacobians, `no_grad`, `checkpoint`, rules, and their checks."""

from keyfold._autograd._grad import checkpoint, grad, no_grad, register_autograd, value_and_grad
from keyfold._autograd._gradcheck import gradcheck, gradgradcheck
from keyfold._autograd._jacobians import hessian, jacfwd, jacrev
from keyfold._autograd._jvp import jvp, register_jvp

__all__ = [
    "checkpoint",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "no_grad",
    "register_autograd",
    "register_jvp",
    "value_and_grad",
]
