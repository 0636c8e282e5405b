"""A function as a graph: printed, replayed, kept as JSON, drawn.

`trace` runs the function once with real numbers and records every operator that it calls, yours
included. What Python decides by a number that is traced can't be in the graph, and is refused.
"""

from typing import Any

import numpy as np

import keyfold as kf


def normalised(x: Any) -> Any:
    """Return the rows of x with mean 0 and spread 1."""
    centred = x - x.mean(1, keepdims=True)
    return centred / (centred**2).mean(1, keepdims=True).sqrt()


def larger_half(x: Any) -> Any:
    """Return x or its negative, whichever has the larger sum."""
    return x if x.sum() > 0 else -x


def main() -> None:
    x = np.array([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]])
    graph = kf.trace(normalised, x)
    print(graph, end="")

    other = x**2 - 4
    print("replayed:  ", np.allclose(graph(other), normalised(kf.asarray(other)).numpy()))
    again = kf.Graph.from_json(graph.to_json())
    print("from JSON: ", np.array_equal(again(x), graph(x)))
    print("drawn:     ", graph.mermaid().splitlines()[0])

    try:
        kf.trace(larger_half, x)
    except kf.TraceError as error:
        print("refused:   ", str(error).partition(",")[0])
    chosen = kf.trace(lambda x: kf.where(x.sum() > 0, x, -x), x)
    print("with where:", chosen.nodes[-1].operator)


if __name__ == "__main__":
    main()
