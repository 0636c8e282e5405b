"""cuDNN graphs on an NVIDIA card: each beside the reference executor on the CPU, and a call's time.

    python benches/gpu/cudnn_card.py [-o RESULTS.json] [--profile FILE]

It needs a card, PyTorch for the arrays on it, and libcudnn. The card's profile is saved, plans are
kept in a folder and read by another process, and engines are timed by `autotune`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import keyfold as kf

sys.path.insert(0, str(Path(__file__).parents[2]))

RNG = np.random.default_rng(0)
Graph = kf.cudnn.Graph
TORCH = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}
# The largest difference of a result, relative to its largest element: the dtype's rounding, TF32's.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "tf32": 4e-3, "int8": 0, "bool": 0}


def nhwc(dim: list[int]) -> list[int]:
    """The strides of channels last."""
    strides, step = [0] * len(dim), 1
    for axis in [1, *range(len(dim) - 1, 1, -1), 0]:
        strides[axis], step = step, step * dim[axis]
    return strides


CASES: dict[str, Callable[[], tuple[Graph, bool]]] = {}


def case(function: Callable[[], tuple[Graph, bool]]) -> None:
    """Register a function that returns a graph, and whether it multiplies float32 as TF32."""
    CASES[function.__name__] = function


def image(g: Graph, dim: list[int], name: str, layout: str = "nhwc", **more: Any) -> Any:
    stride = nhwc(dim) if layout == "nhwc" else None
    return g.tensor(dim=dim, stride=stride, name=name, **more)


def conv(io: str, layout: str, epilogue: str = "", kind: str = "fprop") -> tuple[Graph, bool]:
    g = Graph(io_data_type=io, name=f"conv {kind} {io} {layout} {epilogue}")
    x, w, y = [8, 32, 28, 28], [64, 32, 3, 3], [8, 64, 28, 28]
    if kind == "fprop":
        out = g.conv_fprop(image(g, x, "x", layout), image(g, w, "w", layout), padding=[1, 1])
        if "bias" in epilogue:
            out = g.add(out, image(g, [1, 64, 1, 1], "b", layout))
        if "relu" in epilogue:
            out = g.relu(out)
    elif kind == "dgrad":
        out = g.conv_dgrad(image(g, y, "dy", layout), image(g, w, "w", layout), padding=[1, 1])
        out.set_dim(x)
    else:
        out = g.conv_wgrad(image(g, x, "x", layout), image(g, y, "dy", layout), padding=[1, 1])
        out.set_dim(w)
    out.set_output(True).set_name("out").set_data_type(io)
    if layout == "nhwc":
        out.set_stride(nhwc(out.dim))
    return g, io == "float32"


for _io in ("float16", "bfloat16", "float32"):
    for _kind in ("fprop", "dgrad", "wgrad"):
        CASES[f"conv {_kind} {_io} nhwc"] = lambda io=_io, kind=_kind: conv(io, "nhwc", "", kind)
for _io in ("float16", "float32"):
    CASES[f"conv bias relu {_io} nhwc"] = lambda io=_io: conv(io, "nhwc", "bias relu")
    CASES[f"conv bias relu {_io} nchw (split)"] = lambda io=_io: conv(io, "nchw", "bias relu")


def matmul(io: str, epilogue: str, batch: list[int] = [4]) -> tuple[Graph, bool]:  # noqa: B006
    g = Graph(io_data_type=io, name=f"matmul {io} {epilogue}")
    a, b = g.tensor(dim=[*batch, 96, 64], name="a"), g.tensor(dim=[*batch, 64, 80], name="b")
    out = g.matmul(a, b)
    if "bias" in epilogue:
        out = g.add(out, g.tensor(dim=[*[1] * len(batch), 1, 80], name="bias"))
    if "gelu" in epilogue:
        out = g.gelu(out)
    out.set_output(True).set_name("out").set_data_type(io)
    return g, io == "float32"


for _io in ("float16", "bfloat16", "float32"):
    CASES[f"matmul {_io}"] = lambda io=_io: matmul(io, "")
    CASES[f"matmul bias gelu {_io}"] = lambda io=_io: matmul(io, "bias gelu")
CASES["matmul 4 dimensions float16 (view)"] = lambda: matmul("float16", "bias", [2, 3])


def pointwise(dim: list[int], io: str = "float32") -> tuple[Graph, bool]:
    g = Graph(io_data_type=io, name=f"chain {dim}")
    x = g.tensor(dim=dim, name="x")
    out = g.tanh(g.add(g.mul(x, g.tensor(dim=dim, name="b")), x))
    out.set_output(True).set_name("out").set_data_type(io)
    return g, False


for _dim in ([8, 64, 128], [4096], [33, 77], [2, 3, 4, 5, 6], [2, 3, 2, 3, 4, 5], [4, 16, 7, 7]):
    CASES[f"pointwise {_dim}"] = lambda dim=_dim: pointwise(dim)
CASES["pointwise [8, 64, 128] bfloat16"] = lambda: pointwise([8, 64, 128], "bfloat16")


def reduction(dim: list[int], to: list[int], mode: str) -> tuple[Graph, bool]:
    g = Graph(io_data_type="float32", name=f"{mode} {dim} {to}")
    out = g.reduction(g.tensor(dim=dim, name="x"), mode=mode, dim=to)
    out.set_output(True).set_name("out")
    return g, False


for _mode in ("add", "max", "min", "amax", "avg", "norm1", "norm2"):
    CASES[f"reduction {_mode} rows (view)"] = lambda m=_mode: reduction([8, 64, 96], [8, 64, 1], m)
for _to in ([1, 1, 1], [1, 1, 96], [8, 1, 96], [1, 64, 1]):
    CASES[f"reduction add to {_to}"] = lambda to=_to: reduction([8, 64, 96], to, "add")


@case
def softmax() -> tuple[Graph, bool]:
    g = Graph(io_data_type="float32", name="softmax")
    x = g.tensor(dim=[2, 4, 32, 96], name="x")
    out = g.softmax(x)
    out = out[0] if isinstance(out, tuple | list) else out
    out.set_output(True).set_name("out")
    return g, False


def norm(kind: str, io: str = "float16") -> tuple[Graph, bool]:
    g = Graph(io_data_type=io, name=kind)
    f = "float32"
    epsilon = g.tensor_like_scalar(1e-5) if hasattr(g, "tensor_like_scalar") else 1e-5
    if kind in ("layernorm", "rmsnorm"):
        x = g.tensor(dim=[128, 256, 1, 1], stride=[256, 1, 256, 256], name="x")
        p = [1, 256, 1, 1]
        scale = g.tensor(dim=p, data_type=f, name="scale")
        if kind == "layernorm":
            made = g.layernorm(
                norm_forward_phase="training",
                input=x,
                scale=scale,
                bias=g.tensor(dim=p, data_type=f, name="bias"),
                epsilon=epsilon,
            )
        else:
            made = g.rmsnorm(norm_forward_phase="training", input=x, scale=scale, epsilon=epsilon)
    else:
        x = image(g, [8, 32, 14, 14], "x")
        p = [1, 32, 1, 1]
        scale = g.tensor(dim=p, data_type=f, name="scale")
        bias = g.tensor(dim=p, data_type=f, name="bias")
        if kind == "batchnorm":
            made = g.batchnorm(input=x, scale=scale, bias=bias, epsilon=epsilon)
        elif kind == "batchnorm_inference":
            mean = g.tensor(dim=p, data_type=f, name="mean")
            inv = g.tensor(dim=p, data_type=f, name="inv")
            made = g.batchnorm_inference(
                input=x, mean=mean, inv_variance=inv, scale=scale, bias=bias
            )
        else:
            made = g.instancenorm(
                norm_forward_phase="training", input=x, scale=scale, bias=bias, epsilon=epsilon
            )
    made = made if isinstance(made, tuple | list) else [made]
    for place, tensor in enumerate(t for t in made if t is not None):
        tensor.set_output(True).set_name(f"out{place}")
        tensor.set_data_type(io if place == 0 else f)
        if place == 0:
            tensor.set_stride(x.stride)
    return g, False


for _k in ("layernorm", "rmsnorm", "batchnorm", "batchnorm_inference", "instancenorm"):
    CASES[f"{_k} float16"] = lambda k=_k: norm(k)
CASES["layernorm bfloat16"] = lambda: norm("layernorm", "bfloat16")


def pooling(mode: str, gradient: bool = False) -> tuple[Graph, bool]:
    g = Graph(io_data_type="float16", name=f"pooling {mode}")
    x, y = [8, 32, 28, 28], [8, 32, 14, 14]
    if gradient:
        out = g.resample_backward(
            image(g, y, "dy"),
            input=image(g, x, "x"),
            output=image(g, y, "y") if mode == "maxpool" else None,
            window=[3, 3],
            stride=[2, 2],
            padding=[1, 1],
            resampling_mode=mode,
        )
    else:
        out, _ = g.resample(
            image(g, x, "x"), window=[3, 3], stride=[2, 2], padding=[1, 1], resampling_mode=mode
        )
    out.set_output(True).set_name("out").set_stride(nhwc(out.dim))
    return g, False


for _m in ("maxpool", "avgpool_include_padding", "avgpool_exclude_padding"):
    CASES[f"pooling {_m}"] = lambda m=_m: pooling(m)
    CASES[f"pooling {_m} gradient"] = lambda m=_m: pooling(m, True)


def attention(causal: bool, stats: bool, io: str = "float16", heads: int = 4) -> tuple[Graph, bool]:
    g = Graph(io_data_type=io, name="attention")
    q = g.tensor(dim=[2, 4, 128, 64], name="q")
    k, v = (g.tensor(dim=[2, heads, 128, 64], name=name) for name in "kv")
    made = g.sdpa(q, k, v, attn_scale=0.125, use_causal_mask=causal, generate_stats=stats)
    o, s = made if isinstance(made, tuple | list) else (made, None)
    o.set_output(True).set_name("o").set_data_type(io)
    if s is not None:
        s.set_output(True).set_name("stats").set_data_type("float32")
    return g, False


for _c, _s in ((False, False), (True, False), (True, True)):
    CASES[f"attention causal={_c} stats={_s}"] = lambda c=_c, s=_s: attention(c, s)
CASES["attention bfloat16"] = lambda: attention(False, False, "bfloat16")
CASES["attention 4 heads of 2"] = lambda: attention(False, False, "float16", 2)


def gradients(causal: bool, heads: int = 4) -> tuple[Graph, bool]:
    g = Graph(io_data_type="float16", name="attention gradients")
    q, o, do = (g.tensor(dim=[2, 4, 128, 64], name=n) for n in ("q", "o", "dO"))
    k, v = (g.tensor(dim=[2, heads, 128, 64], name=n) for n in "kv")
    stats = g.tensor(dim=[2, 4, 128, 1], data_type="float32", name="stats")
    made = g.sdpa_backward(q, k, v, o, do, stats, attn_scale=0.125, use_causal_mask=causal)
    for name, tensor in zip(("dq", "dk", "dv"), made, strict=False):
        tensor.set_output(True).set_name(name).set_data_type("float16")
    return g, False


CASES["attention gradients"] = lambda: gradients(False)
CASES["attention gradients causal"] = lambda: gradients(True)
CASES["attention gradients 4 heads of 2"] = lambda: gradients(False, 2)


@case
def comparison() -> tuple[Graph, bool]:
    g = Graph(io_data_type="float32", name="comparison")
    a, b = g.tensor(dim=[4, 32, 64], name="a"), g.tensor(dim=[4, 32, 64], name="b")
    out = g.cmp_gt(a, b)
    out.set_output(True).set_name("out").set_data_type("bool")
    return g, False


@case
def select() -> tuple[Graph, bool]:
    g = Graph(io_data_type="float32", name="select")
    a, b = g.tensor(dim=[4, 32, 64], name="a"), g.tensor(dim=[4, 32, 64], name="b")
    mask = g.cmp_gt(a, b)
    mask.set_data_type("bool")
    out = g.binary_select(a, b, mask)
    out.set_output(True).set_name("out")
    return g, False


# ------------------------------------------------------------------------------------------------


def numpy_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Random numbers for a tensor, packed in the order of its strides."""
    dtype = str(tensor.data_type)
    memory = RNG.standard_normal(extent(tensor)).astype(np.float32)
    if tensor.name == "stats":
        # Logarithms of sums of exponentials, for weights below 1.
        memory = 6 + np.abs(memory)
    if tensor.name == "inv":
        memory = np.abs(memory) + 0.1
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return memory.astype(kind)


def extent(tensor: Any) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(tensor.dim, tensor.stride, strict=True))


def strided(memory: np.ndarray[Any, Any], tensor: Any) -> np.ndarray[Any, Any]:
    steps = [s * memory.itemsize for s in tensor.stride]
    return np.lib.stride_tricks.as_strided(memory, tensor.dim, steps)


def on_card(memory: np.ndarray[Any, Any], tensor: Any) -> torch.Tensor:
    if memory.dtype == ml_dtypes.bfloat16:
        flat = torch.from_numpy(memory.view(np.int16)).cuda().view(torch.bfloat16)
    else:
        flat = torch.from_numpy(memory).cuda()
    return flat.as_strided(tensor.dim, tensor.stride)


def run(name: str) -> dict[str, Any]:
    """Build and run a case on the card and on the CPU."""
    row: dict[str, Any] = {"case": name}
    try:
        graph, tf32 = CASES[name]()
        graph.validate()
        reference = graph.build(device="cpu")
        given = {t: numpy_of(t) for t in reference.inputs}
        want = reference({t: strided(m, t) for t, m in given.items()})
    except Exception as error:
        return row | {"verdict": "no reference", "error": repr(error)[:400]}
    try:
        begun = time.perf_counter()
        plan = graph.build(device="cuda", tf32=tf32)
        row["build_ms"] = (time.perf_counter() - begun) * 1e3
        row["engine"], row["steps"] = plan.engine, plan.steps
        row["workspace_bytes"] = plan.workspace_bytes
    except kf.Error as error:
        return row | {"verdict": "refused", "error": str(error)[:600]}
    try:
        arrays = {
            t: on_card(given[next(r for r in given if r.uid == t.uid)], t) for t in plan.inputs
        }
        got = plan(arrays)
        torch.cuda.synchronize()
        differences = {}
        for tensor in plan.outputs:
            a = got[tensor]
            a = a.float().cpu().numpy() if a.dtype != torch.bool else a.cpu().numpy()
            b = np.asarray(want[next(r for r in reference.outputs if r.uid == tensor.uid)])
            kind = str(tensor.data_type)
            if kind == "bfloat16":
                b = b.view(ml_dtypes.bfloat16) if b.dtype != ml_dtypes.bfloat16 else b
            b = b.astype(np.float32)
            largest = max(1e-30, float(np.abs(b).max()))
            differences[tensor.name] = float(np.abs(a.astype(np.float32) - b).max()) / largest
        limit = TOLERANCE["tf32" if tf32 else str(plan.outputs[0].data_type)]
        row["difference"], row["tolerance"] = differences, limit
        worst = max(differences.values())
        row["verdict"] = "equal" if worst <= limit else "different"
        outputs = {t: got[t] for t in plan.outputs}
        begun = time.perf_counter()
        for _ in range(200):
            plan(arrays, out=outputs)
        row["host_us_a_call"] = (time.perf_counter() - begun) / 200 * 1e6
        torch.cuda.synchronize()
    except Exception as error:
        row |= {
            "verdict": "failed",
            "error": repr(error)[:600],
            "trace": traceback.format_exc()[-600:],
        }
    return row


def worker(folder: Path, names: list[str]) -> None:
    """Run cases, and print each one's row when it is done."""
    kf.cudnn.plan_cache.keep_in(folder)
    for name in names:
        print(json.dumps(run(name)), flush=True)


def rows_of(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """Run cases in other processes: where one dies, the next goes on behind the case at fault."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(names):
        left = names[len(rows) :]
        command = [sys.executable, __file__, "--worker", str(folder), json.dumps(left)]
        done = subprocess.run(command, capture_output=True, text=True)
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(rows) < len(names):
            why = f"the process ended with {done.returncode}: {done.stderr[-600:]}"
            rows.append({"case": names[len(rows)], "verdict": "died", "error": why})
    return rows


def main() -> int:
    """Run all cases twice, the second time with the plans that the first one kept."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("-o", default="cudnn_card.json")
    options.add_argument("--profile", default="card.json")
    options.add_argument("--only", default="", help="cases whose name has this text")
    options.add_argument("--worker", nargs=2, help="a folder of plans, and a JSON list of cases")
    given = options.parse_args()
    if given.worker:
        worker(Path(given.worker[0]), json.loads(given.worker[1]))
        return 0
    report: dict[str, Any] = {"torch": torch.__version__, "card": torch.cuda.get_device_name()}
    report["libraries"] = [
        [str(path), origin, why]
        for path, origin, why in kf._core._cudnn_libraries(kf.cudnn._library.packages())
    ]
    try:
        profile = kf.cudnn.CardProfile.capture("cuda")
        profile.save(given.profile)
        report["profile"] = [profile.name, profile.source, profile.fingerprint]
    except kf.Error as error:
        report["profile"] = repr(error)
    print(report, flush=True)
    names = [name for name in CASES if given.only in name]
    folder = Path(tempfile.mkdtemp(prefix="plans"))
    begun = time.perf_counter()
    rows = report["rows"] = rows_of(folder, names)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
        if row["verdict"] != "equal":
            found = row.get("difference", ""), row.get("error", "")[:500]
            print(row["verdict"], row["case"], *found, flush=True)
    print(f"first: {counts}, {time.perf_counter() - begun:.0f} s", flush=True)
    report["kept"] = len(list(folder.glob("*.json")))
    Path(given.o).write_text(json.dumps(report, indent=1) + "\n")
    equal = [row["case"] for row in rows if row["verdict"] == "equal"]
    again = rows_of(folder, equal)
    read = [row for row in again if row.get("steps", [""])[0].startswith("read from")]
    report["again"] = [
        {k: row.get(k) for k in ("case", "verdict", "build_ms", "difference", "error")}
        for row in read
    ]
    same = sum(row["verdict"] == "equal" for row in read)
    print(f"read by another process: {len(read)} of {len(equal)} plans, {same} equal", flush=True)
    report["autotune"] = []
    for name in ("conv fprop float16 nhwc", "matmul bias gelu float16", "pointwise [8, 64, 128]"):
        graph, tf32 = CASES[name]()
        try:
            steps = graph.build(device="cuda", tf32=tf32, policy="autotune").steps
        except kf.Error as error:
            steps = [str(error)]
        report["autotune"].append([name, steps])
        print(name, steps, flush=True)
    Path(given.o).write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
