"""A derivative of one's own, and whether it is right.

An operator with a kernel for one backend works under Autograd going forward; going back names it.
`register_autograd` gives it a derivative, and `gradcheck` compares that with finite differences.
Since it is written with operators, it has a derivative, too.
"""

from typing import Any

import numpy as np

import keyfold as kf

kf.define("example::softsign(Tensor x) -> Tensor")


@kf.impl("example::softsign", "CPU")
def softsign(x: Any) -> Any:
    """Return x / (1 + |x|)."""
    return x / (1 + abs(x))


op = kf.ops.example.softsign


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def wrong(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad / (1 + abs(x))


def right(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad / (1 + abs(x)) ** 2


def main() -> None:
    x = np.array([-1.0, 0.5, 3.0])
    print("forward:          ", op(kf.asarray(x).requires_grad_()).tolist())
    try:
        op(kf.asarray(x).requires_grad_()).sum().backward()
    except kf.GradientError as error:
        print("no derivative:    ", str(error).partition(";")[0])

    handle = kf.register_autograd(op, wrong, setup_context=keep)
    try:
        kf.gradcheck(op, x)
    except kf.GradientError as error:
        print("a wrong one:      ", str(error).partition(":")[0])
    handle.remove()

    kf.register_autograd(op, right, setup_context=keep)
    print("the right one:    ", kf.gradcheck(op, x))
    print("and its derivative:", kf.gradgradcheck(op, x))
    slope = kf.grad(lambda x: op(x).sum())
    print("slopes:           ", slope(x).round(4))


if __name__ == "__main__":
    main()
