"""Random programs of array operations, for pipelines: eagerly and deferred, on any device."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import keyfold as kf

SHAPES = [(3,), (2, 3), (3, 2), (2, 2), (1,), ()]


# A step is a function of the tensors so far and of a number, which returns new tensors.
def unary(f):
    return lambda ts, a, b: [f(ts[a % len(ts)])]


def binary(f):
    return lambda ts, a, b: [f(ts[a % len(ts)], ts[b % len(ts)])]


def assign(ts, a, b):
    x = ts[a % len(ts)]
    if x.ndim:
        x[0] = float(b)
    return []


def add_in_place(ts, a, b):
    ts[a % len(ts)] += float(b % 3)
    return []


def assign_tensor(ts, a, b):
    ts[a % len(ts)][...] = ts[b % len(ts)]
    return []


STEPS = {
    "add": binary(lambda x, y: x + y),
    "mul": binary(lambda x, y: x * y),
    "sub": binary(lambda x, y: x - y),
    "maximum": binary(kf.maximum),
    "less": binary(lambda x, y: kf.astype(x < y, "float64")),
    "matmul": binary(lambda x, y: x @ y),
    "tanh": unary(kf.tanh),
    "exp of tanh": unary(lambda x: kf.exp(kf.tanh(x))),
    "sum": unary(kf.sum),
    "mean of rows": unary(lambda x: kf.mean(x, axis=-1) if x.ndim else x),
    "max": unary(kf.max),
    "softmax": unary(lambda x: kf.softmax(x, axis=-1) if x.ndim else x),
    "float32": unary(lambda x: kf.astype(kf.astype(x, "float32"), "float64")),
    "transpose": unary(lambda x: x.T if x.ndim == 2 else x),
    "first": unary(lambda x: x[0] if x.ndim else x),
    "rest": unary(lambda x: x[1:] if x.ndim else x),
    "reversed": unary(lambda x: x[::-1] if x.ndim else x),
    "reshape": unary(lambda x: x.reshape(-1)),
    "positive ones": unary(lambda x: x[x > 0.0]),
    "split": lambda ts, a, b: list(kf.unstack(ts[a % len(ts)])) if ts[a % len(ts)].ndim else [],
    "several results": lambda ts, a, b: (
        list(kf.ops.aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5))
        if (x := ts[a % len(ts)]).ndim
        else []
    ),
    "random": lambda ts, a, b: [kf.rand(3, dtype="float64", device=ts[0].device)],
    "dropout": unary(lambda x: kf.dropout(x, 0.5)),
    "zeros": lambda ts, a, b: [
        kf.zeros(SHAPES[b % len(SHAPES)], dtype="float64", device=ts[0].device)
    ],
    "assign a number": assign,
    "assign a tensor": assign_tensor,
    "add in place": add_in_place,
    "concat": lambda ts, a, b: [
        kf.concat([ts[a % len(ts)].reshape(-1), ts[b % len(ts)].reshape(-1)])
    ],
    "forget": lambda ts, a, b: [] if len(ts) < 2 else [ts.pop(a % len(ts))][:0],
}

program = st.lists(
    st.tuples(
        st.sampled_from(sorted(STEPS)), st.integers(0, 50), st.integers(0, 50), st.booleans()
    ),
    min_size=1,
    max_size=50,
)


def run(steps, flush, device="cpu"):
    """Run a program on a device; returns its tensors, and the kinds of errors that calls raised.

    `flush` is called after each step that says so.
    """
    kf.manual_seed(7)
    rng = np.random.default_rng(3)
    made = [kf.asarray(rng.standard_normal(shape), copy=True) for shape in SHAPES[:4]]
    tensors = [x.to(device) for x in made]
    errors = []
    for at, (name, a, b, flushes) in enumerate(steps):
        try:
            tensors.extend(STEPS[name](tensors, a, b))
        except kf.Error as error:
            errors.append((at, type(error)))
        if flush is not None and flushes:
            flush(tensors, a)
    return tensors, errors


def same(a, b):
    """Whether two tensors or arrays have the same bits."""
    x, y = (np.asarray(one.cpu() if isinstance(one, kf.Tensor) else one) for one in (a, b))
    return x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def flush_or_read(tensors, a):
    if a % 2:
        kf.flush()
    else:
        tensors[a % len(tensors)].tolist()


def check(steps, device="cpu", how=None):
    """Compare a program's eager results with those in a pipeline with flushes on its way.

    `how` is the pipeline's own `check`.
    """
    eager, errors = run(steps, None, device)
    with kf.pipeline(check=how) as pipe:
        deferred, found = run(steps, flush_or_read, device)
    assert found == errors
    assert len(eager) == len(deferred)
    assert not any(t.is_pending for t in deferred)
    assert pipe.pending_count() == 0
    for at, (a, b) in enumerate(zip(eager, deferred, strict=True)):
        assert same(a, b), at
