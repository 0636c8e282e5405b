"""An operator given to PyTorch with its gradient, and one of PyTorch's taken over.

What is exported is an ordinary custom operator there: it works under `torch.compile`, and keyfold's
layers see each call. What is imported is an ordinary operator here: it takes NumPy arrays, and has
a gradient.
"""

from typing import Any

import numpy as np
import torch

import keyfold as kf

kf.define("torch_demo::softsign(Tensor x) -> Tensor")


@kf.impl("torch_demo::softsign", "CPU")
def softsign(x: Any) -> Any:
    """Return x / (1 + |x|)."""
    return x / (1 + abs(x))


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad / (1 + abs(x)) ** 2


kf.register_fake("torch_demo::softsign", lambda x: x)
kf.register_autograd("torch_demo::softsign", backward, setup_context=keep)


def main() -> None:
    softsign = kf.torch.export("torch_demo::softsign")
    print("torch's now:     ", softsign.op._schema)

    x = torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = torch.ops.torch_demo.softsign(x)
    print("called:          ", y.tolist())
    y.sum().backward()
    print("gradient:        ", x.grad.tolist())
    print("gradcheck:       ", torch.autograd.gradcheck(softsign, (x,)))
    compiled = torch.compile(softsign.op, fullgraph=True, backend="aot_eager")
    print("compiled:        ", compiled(x).tolist())

    seen = []

    def layer(keyset: Any, x: Any) -> Any:
        seen.append("torch_demo::softsign")
        return kf.redispatch("torch_demo::softsign", keyset.remove("Pipeline"), x)

    kf.impl("torch_demo::softsign", "Pipeline", layer, with_keyset=True)
    with kf.include_keys("Pipeline"):
        softsign(x.detach())
    print("a layer saw:     ", seen)

    erf = kf.torch.import_("aten::erf")
    numbers = np.array([0.0, 0.5, 1.0])
    print("torch's erf here:", erf(numbers).round(4).tolist())
    slope = kf.grad(lambda x: erf(x).sum())
    print("its slope:       ", slope(numbers).round(4).tolist())

    softsign.close()
    try:
        softsign(x)
    except kf.OperatorRemoved as error:
        print("taken back:      ", error)


if __name__ == "__main__":
    main()
