"""A class of arrays of one's own: lengths and times that carry their unit.

Its key, Units, says what the data is, so it isn't skippable: an operator without a kernel for it is
an error, instead of a result without a unit. `register_array_type` tells keyfold the class's keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import keyfold as kf

kf.register_key("Units", above="Sparse")


@dataclass(frozen=True)
class Quantity:
    """Values in a unit."""

    values: np.ndarray
    unit: str

    def __str__(self) -> str:
        return f"{self.values.tolist()} {self.unit}"


kf.register_array_type(Quantity, kf.DispatchKeySet("Units", "CPU"))


@kf.impl("aten::add", "Units")
def add(x: Quantity, y: Quantity) -> Quantity:
    if x.unit != y.unit:
        raise ValueError(f"can't add {y.unit} to {x.unit}")
    # Below Units there are plain arrays: this call dispatches on those.
    return Quantity(kf.ops.aten.add(x.values, y.values), x.unit)


@kf.impl("aten::div", "Units")
def div(x: Quantity, y: Quantity) -> Quantity:
    return Quantity(kf.ops.aten.div(x.values, y.values), f"{x.unit}/{y.unit}")


def main() -> None:
    aten = kf.ops.aten
    way = Quantity(np.array([100.0, 42.0]), "m")
    time = Quantity(np.array([10.0, 7.0]), "s")
    print("way + way: ", aten.add(way, way))
    print("way / time:", aten.div(way, time))
    try:
        aten.add(way, time)
    except ValueError as error:
        print("way + time:", error)
    try:
        aten.exp(way)
    except NotImplementedError as error:
        print("exp(way):  ", error)


if __name__ == "__main__":
    main()
