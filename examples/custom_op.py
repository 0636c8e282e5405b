"""An operator of a plain function: the schema read from its annotations, and what one adds to it.

The function here is NumPy code with a loop. As an operator it has a schema, a derivative, a
batching rule and a kernel of another kind beside it, and keyfold checks that they agree.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import keyfold as kf


@kf.custom_op("example::running_mean", mutates_args=())
def running_mean(x: NDArray[Any], weight: float = 0.5) -> NDArray[Any]:
    """Smooth the last axis: each element a mix of itself and the mean so far."""
    x = np.asarray(x)
    out = np.empty_like(x)
    state = np.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        state = weight * x[..., i] + (1.0 - weight) * state
        out[..., i] = state
    return out


@running_mean.register_fake
def shape_only(x: kf.Tensor, weight: float) -> kf.Tensor:
    return kf.empty_like(x)


def setup(ctx: Any, inputs: tuple[Any, ...], output: kf.Tensor) -> None:
    ctx.weight = inputs[1]


def backward(ctx: Any, grad: kf.Tensor) -> tuple[kf.Tensor, None]:
    # The filter run backwards, by the same operator.
    return running_mean(grad.flip(-1), ctx.weight).flip(-1), None


running_mean.register_autograd(backward, setup_context=setup)


@running_mean.register_vmap
def batched(info: kf.VmapInfo, in_dims: Any, x: kf.Tensor, weight: float) -> tuple[kf.Tensor, int]:
    # The function smooths the last axis, whatever stands before it.
    axes = [in_dims[0], *(axis for axis in range(x.ndim) if axis != in_dims[0])]
    return running_mean(x.permute(axes), weight), 0


@kf.custom_op("example::clear", mutates_args=("x",))
def clear(x: NDArray[Any], where: list[int]) -> None:
    np.asarray(x)[..., where] = 0.0


def main() -> None:
    print("schema:     ", running_mean.schema)
    print("called:     ", running_mean(np.array([4.0, 0.0, 8.0])))
    print("gradient:   ", kf.grad(lambda x: running_mean(x).sum())(np.ones(3)))
    print("a batch:    ", kf.vmap(running_mean)(np.ones((2, 3))).tolist())

    report = kf.opcheck(running_mean.operator, (kf.rand((2, 4)),))
    print("opcheck:    ", ", ".join(name for name, found in report.items() if found == "passed"))

    running_mean.register_kernel("cpu", lambda x, weight: np.asarray(x) * 0.0)
    print("a bad one:  ", running_mean(np.ones(3)))
    with running_mean.set_kernel_enabled("cpu", False):
        print("without it: ", running_mean(np.ones(3)))

    stock = np.ones(4)
    clear(stock, [1, 2])
    print("in place:   ", clear.schema, stock)

    def unclear(x: dict[str, int]) -> None: ...

    try:
        kf.custom_op("example::unclear", unclear, mutates_args=())
    except kf.SchemaError as error:
        print("unclear:    ", str(error).splitlines()[0].rpartition(") ")[2])


if __name__ == "__main__":
    main()
