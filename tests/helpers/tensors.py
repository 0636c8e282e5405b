"""Tensors to compute with."""

import numpy as np

import keyfold as kf


def leaf(data):
    """A tensor of its own memory that wants a gradient: float64, or what an array has."""
    data = np.array(data, dtype=None if isinstance(data, np.ndarray) else np.float64)
    return kf.asarray(data).requires_grad_()


def random(*shape):
    """A NumPy array of numbers between -1 and 1, the same each time."""
    return np.random.default_rng(7).uniform(-1, 1, shape)


def tensor(*shape, seed=0, dtype="float64"):
    numbers = np.random.default_rng(seed).uniform(0.5, 2.0, shape)
    return kf.from_numpy(numbers.astype(dtype))


def layer(x, w, b):
    return kf.softmax(kf.relu(x @ w + b) * 2.0)
