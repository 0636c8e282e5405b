"""The operators: what the entry point names, imported when `kf.ops.shop` is first used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import keyfold as kf


@kf.custom_op("shop::discount", mutates_args=())
def discount(prices: NDArray[Any], percent: float = 10.0) -> NDArray[Any]:
    """Prices less so many percent."""
    return np.asarray(prices) * (1.0 - percent / 100.0)


@discount.register_fake
def _(prices: kf.Tensor, percent: float) -> kf.Tensor:
    return kf.empty_like(prices)


def keep_percent(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.percent = inputs[1]


def discount_backward(ctx: Any, grad: kf.Tensor) -> tuple[kf.Tensor, None]:
    return grad * (1.0 - ctx.percent / 100.0), None


discount.register_autograd(discount_backward, setup_context=keep_percent)


@kf.custom_op("shop::restock", mutates_args=("stock",))
def restock(stock: NDArray[Any], items: list[int]) -> None:
    """One more of each of these items, in place."""
    np.add.at(np.asarray(stock), items, 1)
