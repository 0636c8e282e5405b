"""A graph of cuDNN's operations on the CPU: inferred, refused, planned, run, kept.

The methods have the names of NVIDIA's frontend. Neither cuDNN nor a GPU is needed, and the same
graph runs on every device that keyfold has a backend for.
"""

import pickle

import numpy as np

import keyfold as kf


def attention_block() -> kf.cudnn.Graph:
    """Return layernorm(x + attention(x, x, x)) as a graph with an output "y"."""
    g = kf.cudnn.Graph(io_data_type="float32", name="attention block")
    x = g.tensor([1, 2, 4, 8], name="x")  # Examples, heads, places, features.
    o, _ = g.sdpa(x, x, x, attn_scale=8**-0.5, use_causal_mask=True)
    scale = g.tensor([1, 2, 1, 8], name="scale")
    bias = g.tensor([1, 2, 1, 8], name="bias")
    # Heads and features are normalized, each place by itself: places go first.
    rows = g.transpose(g.add(x, o), [2, 1, 0, 3])
    y, _, _ = g.layernorm(kf.cudnn.norm_forward_phase.INFERENCE, rows, scale, bias, epsilon=1e-5)
    g.transpose(y, [2, 1, 0, 3]).set_output(True).set_name("y")
    g.validate()
    return g


def main() -> None:
    g = attention_block()
    print("inferred: ", g["y"])
    try:
        g.matmul(g["x"], g["x"])
    except kf.ShapeError as error:
        print("refused:  ", error)

    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(1, 2, 4, 8)).astype(np.float32),
        "scale": np.ones((1, 2, 1, 8), np.float32),
        "bias": np.zeros((1, 2, 1, 8), np.float32),
    }
    plan = g.build(device="cpu")
    y = plan(arrays)["y"]
    print("result:   ", type(y).__name__, y.shape)
    print("normal:   ", np.allclose(y.mean((1, 3)), 0, atol=1e-6), f"{y.std():.3f}")
    try:
        plan({"x": arrays["x"], "scale": arrays["scale"], "shift": arrays["bias"]})
    except kf.InvalidValue as error:
        print("not given:", error)

    # Sizes that will be asked for are planned ahead: a build is then a look-up.
    cache = kf.cudnn.plan_cache
    cache.prepare(g, shapes=[{"x": [1, 2, n, 8]} for n in (16, 32)])
    before = cache.stats()
    g["x"].set_dim([1, 2, 32, 8])
    g.build()
    print("prepared: ", cache.stats().misses - before.misses, "builds")

    again = pickle.loads(pickle.dumps(g))
    print("kept:     ", again.signature() == g.signature(), again["y"].dim)
    print("drawn:    ", g.draw("mermaid").splitlines()[1].strip())


if __name__ == "__main__":
    main()
