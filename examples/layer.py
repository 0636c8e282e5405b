"""A layer of one's own: a key above Autograd that catches NaN where it first appears.

A user key that is "skippable" is a mode: calls pass it by unless somebody includes it. A fallback
is its kernel for every operator at once.
"""

from typing import Any

import numpy as np

import keyfold as kf

kf.register_key("NanGuard", above="Autograd", skippable=True)


def nan_guard(op: kf.Operator, keyset: kf.DispatchKeySet, args: Any, kwargs: Any) -> Any:
    """Hand the call on below NanGuard, and look at what comes back."""
    result = op.redispatch(keyset.remove("NanGuard"), *args, **kwargs)
    if isinstance(result, np.ndarray) and np.isnan(result).any():
        raise FloatingPointError(f"{op.name} made {np.isnan(result).sum()} NaN")
    return result


kf.fallback("NanGuard", nan_guard)


def entropy(p: np.ndarray) -> Any:
    """Return -sum(p log p), which is NaN where p is 0."""
    aten = kf.ops.aten
    return aten.neg(aten.sum(aten.mul(p, aten.log(p))))


def main() -> None:
    p = np.array([0.5, 0.5, 0.0])
    print("without the layer:", entropy(p))
    with kf.include_keys("NanGuard"):
        print("a good input:     ", entropy(np.array([0.5, 0.25, 0.25])))
        try:
            entropy(p)
        except FloatingPointError as error:
            print("with the layer:   ", error)


if __name__ == "__main__":
    main()
