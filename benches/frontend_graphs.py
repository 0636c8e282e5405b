"""Graphs that NVIDIA's frontend and keyfold build by the same calls, and the frontend's side.

`bench_cudnn_frontend.py` runs this file with the Python that has the frontend, in a process of its
own: planning without a GPU needs a `libcuda.so.1` that has none, which keyfold's process never
loads. A line of JSON on standard input names a case and a card; one on standard output answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH, HEADS, LENGTH = 2, 8, 512
# The types of a graph; each side has its own constants.
Types = dict[str, Any]


def packed(dims: list[int]) -> list[int]:
    """The strides of packed memory."""
    stride = [1]
    for size in reversed(dims[1:]):
        stride.insert(0, stride[0] * size)
    return stride


def channels_last(dims: list[int]) -> list[int]:
    """The strides of memory with the channels last."""
    batch, channels, *space = dims
    inner = packed([batch, *space, channels])
    return [inner[0], 1, *inner[1:-1]]


def heads(g: Any, types: Types, number: int, depth: int) -> Any:
    dims = [BATCH, number, LENGTH, depth]
    return g.tensor(dim=dims, stride=packed(dims), data_type=types["half"])


def keep(tensor: Any, dims: list[int], stride: list[int], data_type: Any) -> None:
    tensor.set_output(True).set_dim(dims).set_stride(stride).set_data_type(data_type)


def padding(g: Any, types: Types) -> dict[str, Any]:
    dims = [BATCH, 1, 1, 1]
    q, kv = (g.tensor(dim=dims, stride=[1] * 4, data_type=types["int32"]) for _ in range(2))
    return {"use_padding_mask": True, "seq_len_q": q, "seq_len_kv": kv}


def scale(g: Any, types: Types) -> Any:
    """The factor of the scores, a number that a run gives."""
    one = [1] * 4
    return g.tensor(dim=one, stride=one, data_type=types["float"], is_pass_by_value=True)


def forward(
    g: Any, types: Types, depth: int, kv: int = HEADS, stats: bool = False, **options: Any
) -> None:
    """Attention."""
    q = heads(g, types, HEADS, depth)
    k, v = (heads(g, types, kv, depth) for _ in range(2))
    if options.pop("padded", False):
        options |= padding(g, types)
    o, sums = g.sdpa(q=q, k=k, v=v, attn_scale=scale(g, types), generate_stats=stats, **options)
    dims = [BATCH, HEADS, LENGTH, depth]
    keep(o, dims, packed(dims), types["half"])
    if stats:
        dims = [BATCH, HEADS, LENGTH, 1]
        keep(sums, dims, packed(dims), types["float"])


def backward(g: Any, types: Types, depth: int, kv: int = HEADS, **options: Any) -> None:
    """The gradients of attention."""
    q, o, gradient = (heads(g, types, HEADS, depth) for _ in range(3))
    k, v = (heads(g, types, kv, depth) for _ in range(2))
    dims = [BATCH, HEADS, LENGTH, 1]
    stats = g.tensor(dim=dims, stride=packed(dims), data_type=types["float"])
    if options.pop("padded", False):
        options |= padding(g, types)
    made = g.sdpa_backward(
        q=q, k=k, v=v, o=o, dO=gradient, stats=stats, attn_scale=scale(g, types), **options
    )
    for tensor, number in zip(made, (HEADS, kv, kv), strict=False):
        dims = [BATCH, number, LENGTH, depth]
        keep(tensor, dims, packed(dims), types["half"])


def convolution(
    g: Any,
    types: Types,
    what: str = "fprop",
    groups: int = 1,
    stride: int = 1,
    epilogue: str = "",
    type_: str = "half",
) -> None:
    """A convolution of images with channels last, or one of its gradients."""
    size = 32 // stride
    sizes = {"x": [4, 64, 32, 32], "w": [64, 64 // groups, 3, 3], "y": [4, 64, size, size]}

    def tensor(dims: list[int]) -> Any:
        return g.tensor(dim=dims, stride=channels_last(dims), data_type=types[type_])

    given = {"padding": [1, 1], "stride": [stride, stride], "dilation": [1, 1]}
    if what == "fprop":
        result, dims = g.conv_fprop(tensor(sizes["x"]), tensor(sizes["w"]), **given), sizes["y"]
    elif what == "dgrad":
        result, dims = g.conv_dgrad(tensor(sizes["y"]), tensor(sizes["w"]), **given), sizes["x"]
        result.set_dim(dims)
    else:
        result, dims = g.conv_wgrad(tensor(sizes["x"]), tensor(sizes["y"]), **given), sizes["w"]
        result.set_dim(dims)
    for step in epilogue.split():
        if step == "bias":
            result = g.bias(result, tensor([1, 64, 1, 1]))
        elif step == "residual":
            result = g.add(result, tensor(dims))
        else:
            result = getattr(g, step)(result)
    keep(result, dims, channels_last(dims), types[type_])


def _attention(depth: int) -> dict[str, tuple[Callable[..., None], dict[str, Any]]]:
    masks: dict[str, dict[str, Any]] = {
        "": {},
        " causal": {"use_causal_mask": True},
        " padding": {"padded": True},
        " GQA": {"kv": 2},
        " GQA causal": {"kv": 2, "use_causal_mask": True},
    }
    made: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {}
    for name, options in masks.items():
        options = {"depth": depth, **options}
        made[f"attention d={depth}{name}"] = forward, options
        made[f"attention d={depth}{name} stats"] = forward, {**options, "stats": True}
        made[f"attention backward d={depth}{name}"] = backward, options
    return made


CASES: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    **_attention(64),
    **_attention(128),
    "conv": (convolution, {}),
    "conv float32": (convolution, {"type_": "float"}),
    "conv stride 2": (convolution, {"stride": 2}),
    "conv 4 groups": (convolution, {"groups": 4}),
    "conv relu": (convolution, {"epilogue": "relu"}),
    "conv bias relu": (convolution, {"epilogue": "bias relu"}),
    "conv bias residual relu": (convolution, {"epilogue": "bias residual relu"}),
    "conv bias gelu": (convolution, {"epilogue": "bias gelu"}),
    "conv dgrad": (convolution, {"what": "dgrad"}),
    "conv dgrad stride 2": (convolution, {"what": "dgrad", "stride": 2}),
    "conv wgrad": (convolution, {"what": "wgrad"}),
}


def plan(cudnn: Any, case: str, properties: dict[str, Any]) -> dict[str, Any]:
    """NVIDIA's first plan of a case: engine, knobs, scratch memory, and the time to it."""
    names = {"half": "HALF", "float": "FLOAT", "int32": "INT32"}
    types = {key: getattr(cudnn.data_type, name) for key, name in names.items()}
    write, options = CASES[case]
    g = cudnn.pygraph(
        io_data_type=types["half"],
        intermediate_data_type=types["float"],
        compute_data_type=types["float"],
        device_property=cudnn.create_device_properties(json.dumps(properties)),
        sm_version=properties["deviceVer"] // 10,
    )
    write(g, types, **options)
    begun = time.perf_counter()
    try:
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        g.check_support()
        g.build_plans()
    except Exception as error:  # It has several kinds of its own.
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    ms = (time.perf_counter() - begun) * 1e3
    if g.selected_engine is not None:
        return {"error": f"an engine of the frontend's own: {g.selected_engine.name}"}
    engine, chosen = g.get_engine_and_knobs_at_index(g._plan_index)
    return {
        "engine": int(engine),
        "knobs": {str(knob).rpartition(".")[2]: int(at) for knob, at in chosen.items()},
        "workspace_bytes": int(g.get_workspace_size()),
        "ms": ms,
    }


def main() -> None:
    """Answer until standard input ends."""
    import cudnn

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    say({"frontend": cudnn.__version__, "cudnn": cudnn.backend_version()})
    for line in sys.stdin:
        asked = json.loads(line)
        say(plan(cudnn, asked["case"], asked["properties"]))


if __name__ == "__main__":
    main()
