"""Kinds of operations of random graphs, each with its gradient and what references compute.

Most add an operation at the graph's end; `skip` and `fork` join the end with another result.
"""

import math
from fractions import Fraction

import numpy as np

from tests.helpers.graph_references import EIGHT_BITS


def convolution(c):
    g, x, n = c.graph, c.end, c.end.dim
    groups = c.pick(1, 2) if n[1] % 2 == 0 else 1
    sides = {"pre_padding": [], "post_padding": [], "stride": [], "dilation": []}
    window = []
    for size in n[2:]:
        dilation, pre, post = c.pick(1, 2), c.pick(0, 1), c.pick(0, 1, 2)
        most = (size + pre + post - 1) // dilation + 1
        window.append(min(c.pick(1, 2, 3), most))
        for numbers, number in zip(
            sides.values(), (pre, post, c.pick(1, 2), dilation), strict=True
        ):
            numbers.append(number)
    w = c.input(2 * groups, n[1] // groups, *window)

    def forward(R, x, at):
        return R.convolution(x, at[w], groups, *sides.values())

    def backward(dy):
        c.has_gradient(w, g.conv_wgrad(x, dy, **sides).set_dim(w.dim))
        return g.conv_dgrad(dy, w, **sides).set_dim(n)

    c.grows(g.conv_fprop(x, w, **sides), forward, backward)


def binary(c):
    g, x, n = c.graph, c.end, c.end.dim
    mode = c.pick("add", "sub", "mul", "div", "max", "min")
    dims = [1, n[1], *[1] * (len(n) - 2)] if c.pick(True, False) else n
    # 8-bit floats may be equal, where the gradient of the greater one is anybody's choice.
    b = c.input(*dims, data_type=c.io if mode in ("max", "min") else None)

    def backward(dy):
        if mode in ("max", "min"):
            compare = g.cmp_gt if mode == "max" else g.cmp_lt
            zero, first = g.scalar(0.0), compare(x, b)
            dx, db = g.binary_select(dy, zero, first), g.binary_select(zero, dy, first)
        elif mode == "mul":
            dx, db = g.mul(dy, b), g.mul(dy, x)
        elif mode == "div":
            dx = g.div(dy, b)
            db = g.neg(g.div(g.mul(dx, x), b))
        else:
            dx, db = dy, dy if mode == "add" else g.neg(dy)
        c.has_gradient(b, c.sums_to(g.identity(db), b))
        return dx

    y = getattr(g, mode)(x, b)
    c.grows(y, lambda R, x, at: R.binary(x, at[b], mode), backward)


def activation(c):
    g, x = c.graph, c.end
    names = ["relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "softplus", "swish"]
    name = c.pick(*names)
    backward = getattr(g, f"{name}_backward")
    forward = lambda R, x, at: R.activation(x, name)  # noqa: E731
    c.grows(getattr(g, name)(x), forward, lambda dy: backward(dy, x))


def norm(c):
    g, x, n = c.graph, c.end, c.end.dim
    names = ["batchnorm", "instancenorm", "layernorm", "adalayernorm", "groupnorm", "rmsnorm"]
    kind = c.pick(*names)
    if math.prod(n[2:]) < 2:
        return
    first = n[0] if kind == "adalayernorm" else 1
    whole = kind in ("layernorm", "adalayernorm", "rmsnorm")
    s = c.input(first, *(n[1:] if whole else (n[1], *[1] * (len(n) - 2))))
    b = c.input(*s.dim)
    groups = (2 if n[1] % 2 == 0 else 1) if kind == "groupnorm" else None
    numbers = {} if groups is None else {"groups": groups}
    axes = {"batchnorm": (0, *range(2, len(n))), "instancenorm": tuple(range(2, len(n)))}
    axes = axes.get(kind, tuple(range(1, len(n))))
    phase = () if kind == "batchnorm" else ("training",)
    y, *rest = getattr(g, kind)(*phase, x, s, b, epsilon=0.125, **numbers)
    statistics = [one for one in rest if one is not None]

    def forward(R, x, at):
        if groups is None:
            return R.norm(x, at[s], at[b], axes, kind != "rmsnorm", 0.125)
        split = (groups, n[1] // groups, *n[2:])
        scale, shift = (at[leaf].reshape(1, *split[:2], *s.dim[2:]) for leaf in (s, b))
        inner = tuple(range(2, len(n) + 1))
        y, *rest = R.norm(x.reshape(n[0], *split), scale, shift, inner, True, 0.125)
        return y.reshape(n), *rest

    for place, tensor in zip((-2, -1)[-len(statistics) :], statistics, strict=True):
        c.also(tensor, lambda R, x, at, place=place: forward(R, x, at)[place])

    def backward(dy):
        dx, *others = getattr(g, f"{kind}_backward")(dy, x, s, *statistics, **numbers)
        for leaf, tensor in zip((s, b), others, strict=False):
            if tensor is not None:
                c.has_gradient(leaf, tensor)
        return dx

    c.grows(y, lambda R, x, at: forward(R, x, at)[0], backward)


def batchnorm_inference(c):
    g, x, n = c.graph, c.end, c.end.dim
    dims = [1, n[1], *[1] * (len(n) - 2)]
    s, b = c.input(*dims), c.input(*dims)
    mean, inverse = (c.input(*dims, data_type="float32") for _ in range(2))

    def forward(R, x, at):
        return (x - at[mean]) * at[inverse] * at[s] + at[b]

    def backward(dy):
        c.has_gradient(b, c.sums_to(g.identity(dy), b))
        return g.mul(g.mul(dy, s), inverse)

    c.grows(g.batchnorm_inference(x, mean, inverse, s, b), forward, backward)


def pooling(c):
    """Of a sum with random numbers: of equal ones any is the greatest, and has the gradient."""
    g, n = c.graph, c.end.dim
    apart = c.input(*n, data_type=c.io)
    x = g.add(c.end, apart)
    sides = {"window": [], "pre_padding": [], "post_padding": [], "stride": []}
    for size in n[2:]:
        window, stride = min(c.pick(1, 2, 3), size), c.pick(1, 2)
        pre, post = c.pick(*range(window)), c.pick(*range(window))
        # The last window has an element that isn't padding.
        while (size + pre + post - window) // stride * stride - pre >= size:
            post -= 1
        for numbers, number in zip(sides.values(), (window, pre, post, stride), strict=True):
            numbers.append(number)
    mode = c.pick("maxpool", "avgpool_include_padding", "avgpool_exclude_padding")
    by_index = mode == "maxpool" and c.pick(True, False)
    y, index = g.resample(x, generate_index=by_index, resampling_mode=mode, **sides)
    by = {"index": index} if by_index else {}
    if mode == "maxpool" and not by_index:
        by = {"input": x, "output": y}

    def forward(R, x, at):
        return R.pool(x + at[apart], mode, *sides.values())

    def backward(dy):
        return g.resample_backward(dy, resampling_mode=mode, **by, **sides).set_dim(n)

    c.grows(y, forward, backward)


def interpolation(c):
    g, x, n = c.graph, c.end, c.end.dim
    mode, edge = c.pick("bilinear", "nearest"), c.pick(True, False)
    halves = [Fraction(0), Fraction(1, 2), Fraction(1)]
    strides = [Fraction(1, 2), Fraction(2, 3), Fraction(1), Fraction(3, 2), Fraction(2)]
    stride, pre, post = ([c.pick(*of) for _ in n[2:]] for of in (strides, halves, halves))
    sides = {
        "window": [min(c.pick(1, 2), size) for size in n[2:]],
        "stride": stride,
        "pre_padding": pre,
        "post_padding": post,
        "resampling_mode": mode,
        "padding_mode": "edge_value" if edge else "zero",
    }
    y, _ = g.resample(x, **sides)
    dims = y.dim

    def forward(R, x, at):
        return R.interpolate(x, mode, edge, dims, stride, pre)

    c.grows(y, forward, lambda dy: g.resample_backward(dy, **sides).set_dim(n))


def product(c):
    g, x, n = c.graph, c.end, c.end.dim
    w = c.input(*[1] * (len(n) - 2), n[-1], c.pick(2, 3, 5))
    swapped = [*range(len(n) - 2), len(n) - 1, len(n) - 2]

    def backward(dy):
        c.has_gradient(w, c.sums_to(g.matmul(g.transpose(x, swapped), dy), w))
        return g.matmul(dy, g.transpose(w, swapped))

    c.grows(g.matmul(x, w), lambda R, x, at: x @ at[w], backward)


def reduction(c):
    """Of a sum with random numbers, as pooling."""
    g, n = c.graph, c.end.dim
    apart = c.input(*n, data_type=c.io)
    x = g.add(c.end, apart)
    mode = c.pick("add", "avg", "max", "min", "norm1", "norm2")
    axes = tuple(axis for axis in range(1, len(n)) if c.pick(True, False)) or (len(n) - 1,)
    dim = [1 if axis in axes else size for axis, size in enumerate(n)]
    y = g.reduction(x, mode, dim=dim)

    def backward(dy):
        if mode in ("max", "min"):
            return g.binary_select(dy, g.scalar(0.0), g.cmp_eq(x, y))
        if mode == "norm1":
            signs = g.binary_select(g.scalar(1.0), g.scalar(-1.0), g.cmp_gt(x, g.scalar(0.0)))
            return g.mul(dy, signs)
        if mode == "norm2":
            return g.mul(g.div(dy, y), x)
        share = 1.0 if mode == "add" else math.prod(dim) / math.prod(n)
        return g.add(dy, g.mul(x, g.scalar(0.0)), alpha1=share)

    c.grows(y, lambda R, x, at: R.reduce(x + at[apart], mode, axes), backward)


def softmax(c):
    g, x, n = c.graph, c.end, c.end.dim
    y, stats = g.softmax(x, generate_stats=True)
    c.also(stats, lambda R, x, at: R.logsumexp(x))

    def backward(dy):
        level = g.reduction(g.mul(dy, y), "add", dim=[*n[:-1], 1])
        return g.mul(g.sub(dy, level), y)

    c.grows(y, lambda R, x, at: R.softmax(x), backward)


def attention(c):
    """Queries are what grows: grouped heads, causal masks, bands, padding, a bias."""
    g, n = c.graph, c.end.dim
    dims = [n[0], n[1], math.prod(n[2:-1]), n[-1]]
    x = c.end if n == dims else g.reshape(c.end, dims)
    batch, heads, rows, features = dims
    keys, depth = c.pick(1, 3, 4), c.pick(1, 2, 4)
    k = c.input(batch, c.pick(1, heads), keys, features)
    v = c.input(batch, c.pick(1, heads), keys, depth)
    scale = c.pick(1.0, 0.5)
    options, bias = {"attn_scale": scale}, None
    row, key = np.arange(rows)[:, None], np.arange(keys)
    seen, diagonal = (
        np.ones((batch, 1, rows, keys), bool),
        np.broadcast_to(row, (batch, 1, rows, 1)),
    )
    lengths = [np.full((batch, 1, 1, 1), size, np.int32) for size in (rows, keys)]
    if c.pick(True, False, False):
        lengths = [
            c.rng.integers(1, size[0, 0, 0, 0] + 1, size.shape, np.int32) for size in lengths
        ]
        q_length, kv_length = map(c.given, lengths, ("seq_len_q", "seq_len_kv"))
        options |= {"use_padding_mask": True, "seq_len_q": q_length, "seq_len_kv": kv_length}
        seen = (row < lengths[0]) & (key < lengths[1])
    mask = c.pick(None, "causal", "bottom_right", "band")
    if mask == "causal":
        options["use_causal_mask"] = True
        seen = seen & (key <= diagonal)
    elif mask is not None:
        left, right = (
            (c.pick(None, 1, 2, 3), 0) if mask == "bottom_right" else (c.pick(1, 2), c.pick(0, 1))
        )
        if mask == "bottom_right":
            diagonal = row + lengths[1].astype(int) - lengths[0]
            options |= {"use_causal_mask_bottom_right": True, "diagonal_band_left_bound": left}
        else:
            options |= {"diagonal_band_left_bound": left, "diagonal_band_right_bound": right}
        seen = seen & (key <= diagonal + right)
        seen = seen if left is None else seen & (key > diagonal - left)
    if c.pick(True, False, False):
        bias = c.input(1, c.pick(1, heads), rows, keys)
        options["bias"] = bias
    o, stats = g.sdpa(x, k, v, generate_stats=True, **options)

    def forward(R, x, at):
        added = 0.0 if bias is None else at[bias]
        return R.attention(x.reshape(dims), at[k], at[v], scale, added, seen)

    c.also(stats, lambda R, x, at: forward(R, x, at)[1])

    def backward(dy):
        dq, dk, dv = g.sdpa_backward(x, k, v, o, dy, stats, **options)
        c.has_gradient(k, dk)
        c.has_gradient(v, dv)
        return dq if n == dims else g.reshape(dq, n)

    c.grows(o, lambda R, x, at: forward(R, x, at)[0], backward)


def moves(c):
    g, x, n = c.graph, c.end, c.end.dim
    kind = c.pick("transpose", "reshape", "concatenate", "slice")
    if kind == "transpose":
        order = [int(axis) for axis in c.rng.permutation(len(n))]
        back = [order.index(axis) for axis in range(len(n))]
        y = g.transpose(x, order)
        c.grows(y, lambda R, x, at: R.permute(x, order), lambda dy: g.transpose(dy, back))
    elif kind == "reshape":
        dim = [n[0], n[1] * n[2], *[1] * (len(n) - 3), math.prod(n[3:])]
        y = g.reshape(x, dim)
        c.grows(y, lambda R, x, at: x.reshape(dim), lambda dy: g.reshape(dy, n))
    elif kind == "slice":
        cut = [slice(c.pick(0, 1), size, c.pick(1, 2)) if size > 1 else slice(0, 1) for size in n]
        sizes = [len(range(*one.indices(size))) for one, size in zip(cut, n, strict=True)]

        def spread(dy):
            # A matrix of 0 and 1 for each dimension puts elements back where they were.
            for axis, (one, size) in enumerate(zip(cut, n, strict=True)):
                matrix = np.zeros((sizes[axis], size), c.io)
                matrix[range(sizes[axis]), range(*one.indices(size))] = 1
                order = [at for at in range(len(n)) if at != axis]
                back = [*range(len(n))]
                back.insert(axis, back.pop())
                shape = [*[1] * (len(n) - 2), *matrix.shape]
                placed = c.given(matrix.reshape(shape), f"place{len(c.arrays)}")
                dy = g.transpose(g.matmul(g.transpose(dy, [*order, axis]), placed), back)
            return dy

        c.grows(g.slice(x, cut), lambda R, x, at: x[tuple(cut)], spread)
    else:
        other = c.input(n[0], 2, *n[2:])
        wide = other if other.data_type == c.io else g.identity(other).set_data_type(x.data_type)
        x = x if x.data_type == wide.data_type else g.identity(x).set_data_type(wide.data_type)
        rest = [slice(None)] * (len(n) - 2)

        def backward(dy):
            second = g.slice(dy, [slice(None), slice(n[1], n[1] + 2), *rest])
            c.has_gradient(other, g.identity(second))
            return g.slice(dy, [slice(None), slice(0, n[1]), *rest])

        y = g.concatenate([x, wide], axis=1)
        c.grows(y, lambda R, x, at: R.concatenate([x, at[other]], 1), backward)


def join(c, other):
    """Joins the end with another value: a sum, a difference, or the end times its sigmoid.

    Where the sizes differ, the other's mean is what is joined.
    """
    g, x, b = c.graph, c.end, c.values[other]
    mode, n = c.pick("add", "sub", "gate"), c.values[other].dim
    same = x.dim == n
    if not same:
        b = g.reshape(g.reduction(b, "avg", dim=[1] * len(n)), [1] * len(x.dim))
    gate = g.sigmoid(b) if mode == "gate" else None
    y = g.mul(x, gate) if mode == "gate" else getattr(g, mode)(x, b)

    def forward(R, x, b, at):
        if not same:
            b = R.reduce(b, "avg", tuple(range(len(n)))).reshape([1] * x.ndim)
        if mode == "gate":
            return x * R.activation(b, "sigmoid")
        return x + b if mode == "add" else x - b

    def backward(dy):
        if mode == "gate":
            dx, db = g.mul(dy, gate), c.sums_to(g.mul(dy, x), b)
            db = g.sigmoid_backward(db, b)
        else:
            dx, db = dy, c.sums_to(dy, b)
            db = g.neg(db) if mode == "sub" else db
        if not same:
            # Each element has the same share of the mean.
            zero = g.mul(c.values[other], g.scalar(0.0))
            db = g.add(g.reshape(db, [1] * len(n)), zero, alpha1=1 / math.prod(n))
        return dx, db

    c.grows(y, forward, backward, other)


def skip(c):
    """Reads an earlier result a second time."""
    whole = [at for at, value in enumerate(c.values) if value.data_type not in EIGHT_BITS]
    join(c, c.pick(*whole))


def fork(c):
    """Two branches of up to two operations from one result, which meet again."""
    begin, ends = c.at, []
    for most in (2, 1):
        c.goes_on_from(begin)
        for _ in range(c.pick(*range(most + 1))):
            c.pick(*OPERATIONS)(c)
        ends.append(c.at)
    join(c, ends[0])


OPERATIONS = [
    convolution, binary, activation, norm, batchnorm_inference, pooling, interpolation, product,
    reduction, softmax, attention, moves,
]  # fmt: skip
KINDS = [*OPERATIONS, skip, fork]
