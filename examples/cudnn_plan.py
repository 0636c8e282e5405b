"""Plans of the real libcudnn for cards that aren't here: ranked, rewritten, kept, read again.

It needs libcudnn and no GPU: `pip install --no-deps nvidia-cudnn-jit-cu13`, 74 MB.
"""

import tempfile

import numpy as np

import keyfold as kf


def convolution() -> kf.cudnn.Graph:
    """Return relu(conv(x, w) + b) of images with channels last."""
    g = kf.cudnn.Graph(io_data_type="float16", name="convolution")
    x = g.tensor(dim=[8, 64, 56, 56], stride=[200704, 1, 3584, 64], name="x")
    w = g.tensor(dim=[64, 64, 3, 3], stride=[576, 1, 192, 64], name="w")
    b = g.tensor(dim=[1, 64, 1, 1], name="b")
    g.relu(g.bias(g.conv_fprop(x, w, padding=[1, 1]), b)).set_output(True).set_name("y")
    return g


def softmax() -> kf.cudnn.Graph:
    """Return softmax over rows, which libcudnn has no engine for."""
    g = kf.cudnn.Graph(io_data_type="float16", name="softmax")
    y, _ = g.softmax(g.tensor([8, 16, 32], name="x"))
    y.set_output(True).set_name("y")
    return g


def main() -> None:
    cache = kf.cudnn.plan_cache
    g = convolution()
    for card in kf.cudnn.CardProfile.names():
        plan = g.build(device=card)
        print(f"{card + ':':9} {plan.engine}, {plan.workspace_bytes} bytes")
    print("steps:   ", plan.steps[-1])
    try:
        plan({tensor: np.zeros(tensor.dim, np.float16) for tensor in plan.inputs})
    except kf.NotSupported as error:
        print("run:     ", error)

    split = softmax().build(device="h100")
    print("split:   ", next(step for step in split.steps if step.startswith("split")))

    with tempfile.TemporaryDirectory() as folder:
        cache.keep_in(folder)
        for what in ("compiled:", "read:    "):
            cache.clear()
            print(what, g.build(device="h100").steps[0])
        cache.keep_in(None)


if __name__ == "__main__":
    main()
