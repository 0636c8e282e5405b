"""Shadow a kernel, call the one below, and take it back.

A second kernel for a taken place is an error that names both, unless `override` says "shadow" (the
old one comes back) or "replace" (it is gone). Here a built-in kernel is wrapped for a while.
"""

from typing import Any

import numpy as np

import keyfold as kf

built_in = kf.get_kernel("aten::exp", "CPU")


def careful_exp(x: Any) -> Any:
    """Clip first: exp of more than 700 is infinite."""
    return built_in(np.minimum(x, 700.0))


def main() -> None:
    exp = kf.ops.aten.exp
    x = np.array([0.0, 1000.0])
    print("built in:     ", exp(x))

    try:
        kf.impl("aten::exp", "CPU", careful_exp)
    except kf.RegistrationError as error:
        print("taken:        ", str(error).partition(";")[0])

    handle = kf.impl("aten::exp", "CPU", careful_exp, override="shadow")
    print("shadowed:     ", exp(x))
    print("explained:    ", kf.explain(exp, x).kernel is careful_exp)

    handle.remove()
    print("built in again:", exp(x))


if __name__ == "__main__":
    main()
