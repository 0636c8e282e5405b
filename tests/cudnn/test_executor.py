"""Random graphs of 1 to 6 operations and their gradients, against PyTorch in float64."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyfold as kf

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Chain:
    """A graph that grows at its end, and what PyTorch computes of the same numbers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.graph = kf.cudnn.Graph(io_data_type="float32", name="random")
        self.arrays, self.leaves, self.gradients, self.backward = {}, {}, [], []
        self.end, self.value = self.input(*(self.pick(*sizes) for sizes in SIZES))

    def pick(self, *choices):
        return int(self.rng.choice(choices))

    def input(self, *dims):
        array = self.rng.uniform(-1.5, 1.5, size=dims).astype(np.float32)
        tensor = self.graph.tensor_like(array, name=f"input{len(self.arrays)}")
        self.arrays[tensor] = array
        leaf = torch.tensor(array, dtype=torch.float64, requires_grad=True)
        self.leaves[tensor] = leaf
        return tensor, leaf

    def grows(self, end, value, backward):
        """Takes a result with the function from its gradient's tensor to its input's."""
        self.backward.append(backward)
        self.end, self.value = end, value

    def has_gradient(self, leaf, tensor):
        self.gradients.append((leaf, tensor.set_output(True)))


SIZES = [(1, 2, 3), (2, 4, 6), (4, 5, 7), (3, 6, 8)]


def convolution(c):
    g, x, n = c.graph, c.end, c.end.dim
    groups = c.pick(1, 2) if n[1] % 2 == 0 else 1
    rows, columns = min(c.pick(1, 2, 3), n[2]), min(c.pick(1, 2), (n[3] + 1) // 2)
    w, leaf = c.input(2 * groups, n[1] // groups, rows, columns)
    pre, post = [c.pick(0, 1), c.pick(0, 2)], [c.pick(0, 2), c.pick(1, 0)]
    stride, dilation = [c.pick(1, 2), 1], [1, c.pick(1, 2)]
    sides = {"pre_padding": pre, "post_padding": post, "stride": stride, "dilation": dilation}
    y = g.conv_fprop(x, w, **sides)
    padded = F.pad(c.value, [pre[1], post[1], pre[0], post[0]])
    value = F.conv2d(padded, leaf, stride=stride, dilation=dilation, groups=groups)

    def backward(dy):
        c.has_gradient(leaf, g.conv_wgrad(x, dy, **sides).set_dim(w.dim))
        return g.conv_dgrad(dy, w, **sides).set_dim(n)

    c.grows(y, value, backward)


def bias(c):
    b, leaf = c.input(1, c.end.dim[1], 1, 1)

    def backward(dy):
        c.has_gradient(leaf, c.graph.reduction(dy, "add", dim=b.dim))
        return dy

    c.grows(c.graph.bias(c.end, b), c.value + leaf, backward)


def activation(c):
    g, x = c.graph, c.end
    name, function = [
        ("relu", F.relu),
        ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid),
        ("elu", F.elu),
        ("gelu", F.gelu),
        ("gelu_approx_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("softplus", F.softplus),
        ("swish", F.silu),
    ][c.pick(*range(8))]
    backward = getattr(g, f"{name}_backward")
    c.grows(getattr(g, name)(x), function(c.value), lambda dy: backward(dy, x))


def norm(c):
    g, x, n = c.graph, c.end, c.end.dim
    kind = ["batchnorm", "instancenorm", "layernorm", "groupnorm", "rmsnorm"][c.pick(*range(5))]
    whole = kind in ("layernorm", "rmsnorm")
    if n[2] * n[3] < 2:
        return
    s, scale = c.input(1, *(n[1:] if whole else (n[1], 1, 1)))
    b, shift = c.input(*s.dim)
    first, options, extra = ("training",), {"epsilon": 0.125}, {}
    axes = {"batchnorm": (0, 2, 3), "instancenorm": (2, 3)}.get(kind, (1, 2, 3))
    value = c.value
    if kind == "batchnorm":
        first = ()
    if kind == "groupnorm":
        groups = 2 if n[1] % 2 == 0 else 1
        extra = {"groups": groups}
        value, axes = value.reshape(n[0], groups, -1, n[2], n[3]), (2, 3, 4)
    mean = 0 if kind == "rmsnorm" else value.mean(axes, keepdim=True)
    centred = value - mean
    normal = centred / torch.sqrt((centred**2).mean(axes, keepdim=True) + 0.125)
    y, *rest = getattr(g, kind)(*first, x, s, b, **extra, **options)
    statistics = [one for one in rest if one is not None]

    def backward(dy):
        back = getattr(g, f"{kind}_backward")
        dx, *others = back(dy, x, s, *statistics, **extra)
        for leaf, tensor in zip((scale, shift), others, strict=False):
            if tensor is not None:
                c.has_gradient(leaf, tensor)
        return dx

    c.grows(y, normal.reshape(*n) * scale + shift, backward)


def pooling(c):
    g, x, n = c.graph, c.end, c.end.dim
    window = [min(c.pick(1, 2, 3), n[2]), min(c.pick(2, 3), n[3])]
    sides = {"window": window, "stride": [c.pick(1, 2), 1]}
    mode = ["maxpool", "avgpool_include_padding", "avgpool_exclude_padding"][c.pick(0, 1, 2)]
    padding = [side // 2 for side in window]
    sides |= {"pre_padding": padding, "post_padding": padding, "resampling_mode": mode}
    most = mode == "maxpool"
    y, index = g.resample(x, generate_index=most, **sides)
    numbers = {"kernel_size": window, "stride": sides["stride"], "padding": padding}
    if most:
        value = F.max_pool2d(c.value, **numbers)
    else:
        value = F.avg_pool2d(c.value, count_include_pad="include" in mode, **numbers)
    by = {"index": index} if most else {}
    c.grows(y, value, lambda dy: g.resample_backward(dy, **by, **sides).set_dim(n))


def product(c):
    g, x, n = c.graph, c.end, c.end.dim
    w, leaf = c.input(1, 1, n[3], c.pick(2, 3, 5))
    swapped = [0, 1, 3, 2]

    def backward(dy):
        each = g.matmul(g.transpose(x, swapped), dy)
        c.has_gradient(leaf, g.reduction(each, "add", dim=w.dim))
        return g.matmul(dy, g.transpose(w, swapped))

    c.grows(g.matmul(x, w), c.value @ leaf, backward)


def moves(c):
    g, x, n = c.graph, c.end, c.end.dim
    kind = c.pick(0, 1, 2)
    if kind == 0:
        order = [0, 2, 3, 1]
        y, value = g.transpose(x, order), c.value.permute(order)
        c.grows(y, value, lambda dy: g.transpose(dy, [0, 3, 1, 2]))
    elif kind == 1:
        dim = [n[0], n[1] * n[2], 1, n[3]]
        c.grows(g.reshape(x, dim), c.value.reshape(dim), lambda dy: g.reshape(dy, n))
    else:
        other, leaf = c.input(n[0], 2, n[2], n[3])

        def backward(dy):
            rest = [slice(None)] * 2
            c.has_gradient(leaf, g.slice(dy, [slice(None), slice(n[1], n[1] + 2), *rest]))
            return g.slice(dy, [slice(None), slice(0, n[1]), *rest])

        y = g.concatenate([x, other], axis=1)
        c.grows(y, torch.cat([c.value, leaf], 1), backward)


KINDS = [convolution, bias, activation, norm, pooling, product, moves]
counts = Counter()


@pytest.fixture(scope="module", autouse=True)
def _report():
    yield
    print(f"\nrandom graphs against PyTorch: {dict(counts)}")


def compare(kinds, seed, precision, plant=0.0, device="cpu"):
    """Runs a random graph with its gradients, and returns the greatest error of its outputs."""
    c = Chain(seed)
    leaf = next(iter(c.leaves.values()))
    for kind in kinds:
        kind(c)
    if not c.backward:
        return 0.0
    dy, weight = c.input(*c.end.dim)
    y = c.end.set_output(True)
    d = dy
    for backward in reversed(c.backward):
        d = backward(d)
    if d is not dy:
        c.has_gradient(leaf, d)
    c.graph.validate()
    arrays = {at: kf.asarray(array, device=device) for at, array in c.arrays.items()}
    out = c.graph.build(device=device, precision=precision)(arrays)
    (c.value * weight.detach()).sum().backward()
    pairs = [(out[y], c.value)] + [(out[t], at.grad) for at, t in c.gradients]
    errors = []
    for got, wanted in pairs:
        got, wanted = np.asarray(kf.asarray(got, device="cpu")), wanted.detach().numpy()
        wanted = wanted.reshape(got.shape)
        errors.append(np.max(np.abs(got + plant - wanted) / (1 + np.abs(wanted))))
    counts["graphs"] += 1
    counts["outputs"] += len(pairs)
    counts.update(kind.__name__ for kind in kinds)
    return max(errors)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_random_graphs_and_their_gradients(kinds, seed):
    assert compare(kinds, seed, "float64") < 1e-5


def test_every_kind_is_compared_in_float32_and_a_planted_error_is_found():
    for kind in KINDS:
        for seed in range(8):
            assert compare([kind], seed, "float32") < 1e-3
            assert compare([kind], seed, "float32", plant=0.01) > 1e-3
