"""A library: definitions and kernels of one namespace, registered together and taken back together.

In a `with` block all of it is registered when the block ends, or, if something fails, none of it.
It stays after the block until `close()`; garbage collection never unregisters anything.
"""

import numpy as np

import keyfold as kf


def double(x: np.ndarray) -> np.ndarray:
    return x * 2


def main() -> None:
    library = kf.Library("shop")
    try:
        with library:
            library.define("double(Tensor x) -> Tensor")
            library.impl("double", double, "CPU")
            library.impl("double", double, "NoSuchKey")
    except kf.Error as error:
        print("nothing registered:", error)
    print("namespaces:        ", [name for name in dir(kf.ops) if name == "shop"])

    with library:
        # The order doesn't matter inside the block.
        library.impl("double", double, "CPU")
        library.define("double(Tensor x) -> Tensor")
    doubled = kf.ops.shop.double
    print("registered:        ", doubled(np.arange(3)))

    library.close()
    try:
        doubled(np.arange(3))
    except kf.OperatorRemoved as error:
        print("closed:            ", error)


if __name__ == "__main__":
    main()
