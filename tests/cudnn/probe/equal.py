"""Whether a plan's parts compute what the graph does, on the reference executor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import keyfold as kf

Array = np.ndarray[Any, Any]


def extent(tensor: dict[str, Any]) -> int:
    """How many elements a tensor's memory has."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor["dims"], tensor["strides"], strict=True))


def view(flat: Array, tensor: dict[str, Any], offset: int = 0) -> Array:
    """A tensor in memory, so many bytes behind its beginning."""
    behind = flat[offset // flat.itemsize :]
    steps = [s * flat.itemsize for s in tensor["strides"]]
    return np.lib.stride_tricks.as_strided(behind, tensor["dims"], steps)


def held(graph: dict[str, Any]) -> list[dict[str, Any]]:
    """The tensors of a graph that a run is given."""
    named = {
        uid
        for op in graph["operations"]
        for ports in (op["inputs"], op["outputs"])
        for uids in ports.values()
        for uid in (uids if isinstance(uids, list) else [uids])
    }
    return [
        tensor
        for tensor in graph["tensors"]
        if tensor["uid"] in named and not tensor.get("virtual") and tensor.get("scalar") is None
    ]


def run(graph: dict[str, Any], arrays: dict[int, Array]) -> None:
    """Run a graph on arrays, its outputs among them."""
    plan = kf.cudnn.Graph.from_json(json.dumps({"format": 2, **graph})).build(device="cpu")
    outputs = {t.uid for t in plan.outputs}
    plan(
        {uid: a for uid, a in arrays.items() if uid not in outputs},
        out={uid: a for uid, a in arrays.items() if uid in outputs},
    )


def run_part(graph: dict[str, Any], arrays: dict[int, Array]) -> None:
    """Run a part of a plan.

    Outputs that lie between each other's elements, as the parts of a concatenation do, are more
    than the reference executor takes at once: such a part has no tensor without memory, and its
    operations are run one by one.
    """
    outputs = {uid for op in graph["operations"] for uid in op["outputs"].values()}
    if len(outputs) < 2 or any(tensor.get("virtual") for tensor in graph["tensors"]):
        return run(graph, arrays)
    for op in graph["operations"]:
        uids = {*op["inputs"].values(), *op["outputs"].values()}
        alone = [tensor for tensor in graph["tensors"] if tensor["uid"] in uids]
        run(
            {**graph, "operations": [op], "tensors": alone},
            {uid: array for uid, array in arrays.items() if uid in uids},
        )
    return None


def memory(tensor: dict[str, Any], rng: np.random.Generator) -> Array:
    """Memory for a tensor that holds small numbers; lengths and offsets are whole ones."""
    kind = np.dtype(tensor["dtype"])
    if tensor.get("by_value"):
        return np.full(1, 0.5, kind)
    if kind.kind in "iub":
        return rng.integers(0, 2, extent(tensor)).astype(kind)
    return rng.standard_normal(extent(tensor), dtype=np.float32).astype(kind)


def difference(graph: kf.cudnn.Graph, plan: kf.cudnn.Plan) -> float:
    """The largest difference of an output of the parts from the graph's, relative to its range."""
    document, spec = json.loads(plan.to_json()), json.loads(graph.to_json())
    rng = np.random.default_rng(0)
    whole = {tensor["uid"]: memory(tensor, rng) for tensor in held(spec)}
    parts = {uid: flat.copy() for uid, flat in whole.items()}
    run(spec, {t["uid"]: view(whole[t["uid"]], t) for t in held(spec)})
    scratch = np.zeros(document["workspace_bytes"] + 256, np.uint8)
    places = dict(map(tuple, document["passed"]))
    given = dict(enumerate(document["given"], 1))
    for part in document["parts"]:
        aliases = {alias["uid"]: alias for alias in part["aliases"]}
        arrays = {}
        for tensor in held(part["graph"]):
            alias = aliases.get(tensor["uid"], {"of": tensor["uid"], "offset": 0})
            if alias["of"] in places:
                flat = scratch[places[alias["of"]] :]
                flat = flat[: flat.size // 8 * 8].view(tensor["dtype"])
            else:
                flat = parts[given[alias["of"]]]
            arrays[tensor["uid"]] = view(flat, tensor, alias["offset"])
        run_part(part["graph"], arrays)
    worst = 0.0
    for uid, flat in whole.items():
        a, b = parts[uid].astype(np.float64), flat.astype(np.float64)
        near = np.isclose(a, b, rtol=0, atol=0, equal_nan=True)
        if not near.all():
            finite = np.isfinite(a) & np.isfinite(b)
            if (~near & ~finite).any():
                return float("inf")
            largest = max(1.0, float(np.abs(b[finite]).max(initial=0)))
            worst = max(worst, float(np.abs(a - b)[finite].max(initial=0)) / largest)
    return worst
