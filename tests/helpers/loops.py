"""Layers as their definitions say, one example after the other."""

import numpy as np

import keyfold as kf


def by_loop(f, in_axes, out_axes, *args):
    """`vmap` as its definition says: one call per example, results stacked."""
    sizes = [a.shape[axis] for a, axis in zip(args, in_axes, strict=True) if axis is not None]
    results = []
    for i in range(sizes[0]):
        example = [
            a if axis is None else np.take(a, i, axis)
            for a, axis in zip(args, in_axes, strict=True)
        ]
        results.append(np.asarray(f(*map(kf.from_numpy, map(np.asarray, example))).numpy()))
    return np.stack(results, out_axes)
