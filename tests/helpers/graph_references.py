"""What NumPy, SciPy and PyTorch compute of the operations of cuDNN graphs, in float64.

A reference is an object with one method for each kind of operation, of arrays of its library.
Gradients are checked in one of two ways: PyTorch's element by element; NumPy's and SciPy's along
random directions, by complex steps: the imaginary part of f(x + i h d) / h is the derivative of f
along d without cancellation, where h is so small that its square vanishes.
"""

import importlib.util
import math
from fractions import Fraction

import numpy as np

STEP = 1e-30
EIGHT_BITS = {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}


def float8_numbers(data_type):
    """The numbers of the bytes 0 to 255 of an 8-bit float; NaN for its infinities, too."""
    exponents, mantissas = EIGHT_BITS[data_type]
    bias = 2 ** (exponents - 1) - 1
    numbers = []
    for byte in range(256):
        power = byte >> mantissas & (1 << exponents) - 1
        part = (byte & (1 << mantissas) - 1) / (1 << mantissas)
        size = math.ldexp(part, 1 - bias) if power == 0 else math.ldexp(1 + part, power - bias)
        top = power == (1 << exponents) - 1
        special = top and (exponents == 5 or part == 7 / 8)
        numbers.append(math.nan if special else -size if byte > 127 else size)
    return np.array(numbers)


def interpolation(mode, edge, size, rows, stride, padding):
    """The matrix that interpolates a dimension: each row has the weights of one result."""
    matrix = np.zeros((rows, size))
    for row in range(rows):
        place = row * stride - padding
        if mode == "nearest":
            first = math.floor(place + Fraction(1, 2))
            weights = [(first, 1.0)]
        else:
            first = math.floor(place)
            weights = [(first, float(1 - (place - first))), (first + 1, float(place - first))]
        for column, weight in weights:
            if edge:
                matrix[row, min(max(column, 0), size - 1)] += weight
            elif 0 <= column < size:
                matrix[row, column] += weight
    return matrix


class NumPy:
    """References of sums and products. Values may be complex: choices go by their real parts."""

    name = "NumPy"

    def leaf(self, array):
        return array

    def gradients(self, forward, leaves, weight, got, rng):
        """The greatest difference from the derivatives along three random directions.

        A step along a direction of signs changes each element as much as any other.
        """
        errors = [0.0]
        for leaf, gradient in got.items():
            for _ in range(3):
                signs = rng.choice([-1.0, 1.0], size=gradient.shape)
                moved = dict(leaves)
                moved[leaf] = leaves[leaf] + 1j * STEP * signs
                derivative = np.sum(forward(moved).imag / STEP * weight)
                error = abs(np.sum(gradient * signs) - derivative)
                errors.append(error / (1 + 0.1 * np.sum(np.abs(gradient))))
        return max(errors)

    def value(self, x):
        return np.real(x)

    def convolution(self, x, w, groups, pre, post, stride, dilation):
        x = np.pad(x, [(0, 0), (0, 0), *zip(pre, post, strict=True)])
        parts = zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
        return np.concatenate([self._correlate(*part, stride, dilation) for part in parts], 1)

    def _correlate(self, x, w, stride, dilation):
        windows, space = self._windows(x, w.shape[2:], stride, dilation), len(stride)
        both = [1, *range(2 + space, 2 + 2 * space)]
        return np.moveaxis(np.tensordot(windows, w, (both, range(1, 2 + space))), -1, 1)

    def _windows(self, x, window, stride, dilation):
        """Windows of images: images, channels, results, elements of a window."""
        reach = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
        axes = tuple(range(2, x.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
        every = [slice(None, None, step) for step in (*stride, *dilation)]
        return windows[(slice(None), slice(None), *every)]

    def pool(self, x, mode, window, pre, post, stride):
        sides = [(0, 0), (0, 0), *zip(pre, post, strict=True)]
        outside = -np.inf if mode == "maxpool" else 0.0

        def flat(x, outside):
            ones = [1] * len(window)
            windows = self._windows(np.pad(x, sides, constant_values=outside), window, stride, ones)
            return windows.reshape(*windows.shape[: x.ndim], -1)

        windows = flat(x, outside)
        if mode == "maxpool":
            return np.take_along_axis(windows, windows.real.argmax(-1)[..., None], -1)[..., 0]
        counted = flat(np.ones_like(x), 1.0 if "include" in mode else 0.0)
        return windows.sum(-1) / counted.sum(-1)

    def interpolate(self, x, mode, edge, dims, stride, padding):
        for axis, rows in enumerate(dims[2:], 2):
            numbers = stride[axis - 2], padding[axis - 2]
            matrix = interpolation(mode, edge, x.shape[axis], rows, *numbers)
            x = np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)
        return x

    def erf(self, x):
        real = np.vectorize(math.erf)(x.real)
        return real + 1j * x.imag * 2 / math.sqrt(math.pi) * np.exp(-(x.real**2))

    def activation(self, x, name):
        sigmoid = 1 / (1 + np.exp(-x))
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return {
            "relu": lambda: np.where(x.real > 0, x, 0),
            "tanh": lambda: np.tanh(x),
            "sigmoid": lambda: sigmoid,
            "elu": lambda: np.where(x.real > 0, x, np.exp(x) - 1),
            "gelu": lambda: x / 2 * (1 + self.erf(x / math.sqrt(2))),
            "gelu_approx_tanh": lambda: x / 2 * (1 + np.tanh(inner)),
            "softplus": lambda: np.log1p(np.exp(x)),
            "swish": lambda: x * sigmoid,
        }[name]()

    def binary(self, a, b, name):
        a, b = np.broadcast_arrays(a, b)
        return {
            "add": lambda: a + b,
            "sub": lambda: a - b,
            "mul": lambda: a * b,
            "div": lambda: a / b,
            "max": lambda: np.where(a.real > b.real, a, b),
            "min": lambda: np.where(a.real < b.real, a, b),
        }[name]()

    def reduce(self, x, mode, axes):
        if mode in ("max", "min"):
            for axis in axes:
                place = getattr(x.real, f"arg{mode}")(axis, keepdims=True)
                x = np.take_along_axis(x, place, axis)
            return x
        total = {"norm1": lambda: x * np.sign(x.real), "norm2": lambda: x * x}.get(mode, lambda: x)
        total = total().sum(axes, keepdims=True)
        if mode == "avg":
            return total / math.prod(x.shape[axis] for axis in axes)
        return np.sqrt(total) if mode == "norm2" else total

    def norm(self, x, scale, shift, axes, centred, epsilon):
        """The result, the mean, and the inverse of the deviation, over axes."""
        mean = x.mean(axes, keepdims=True) if centred else np.zeros([1] * x.ndim)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
        return (x - mean) * inverse * scale + shift, mean, inverse

    def softmax(self, x):
        parts = np.exp(x - x.real.max(-1, keepdims=True))
        return parts / parts.sum(-1, keepdims=True)

    def logsumexp(self, x):
        greatest = x.real.max(-1, keepdims=True)
        return greatest + np.log(np.exp(x - greatest).sum(-1, keepdims=True))

    def attention(self, q, k, v, scale, bias, seen):
        """The result and its statistics; a row that sees no key has 0 and -inf."""
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = scale * q @ np.swapaxes(k, 2, 3) + bias
        seen = np.broadcast_to(seen, scores.shape)
        some = seen.any(-1, keepdims=True)
        kept = np.where(seen | ~some, scores, -np.inf)
        return (
            np.where(some, self.softmax(kept) @ v, 0),
            np.where(some, self.logsumexp(kept), -np.inf),
        )

    def permute(self, x, order):
        return x.transpose(order)

    def concatenate(self, parts, axis):
        return np.concatenate(parts, axis)


class SciPy(NumPy):
    """References of SciPy's functions, where it has one for an operation."""

    name = "SciPy"

    def _correlate(self, x, w, stride, dilation):
        from scipy.signal import correlate

        spread = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilation, strict=True)]
        wide = np.zeros((*w.shape[:2], *spread), w.dtype)
        wide[(..., *(slice(None, None, step) for step in dilation))] = w
        wide = wide.conj()  # SciPy takes the conjugate of what moves.
        every = tuple(slice(None, None, step) for step in stride)
        whole = [
            [sum(correlate(*pair, "valid", "direct") for pair in zip(image, f, strict=True))[every]
             for f in wide]
            for image in x
        ]  # fmt: skip
        return np.array(whole)

    def pool(self, x, mode, window, pre, post, stride):
        if mode == "maxpool":
            return super().pool(x, mode, window, pre, post, stride)
        ones = np.ones((1, 1, *window))
        one = [1] * len(window)
        flat = x.reshape(-1, 1, *x.shape[2:])
        sides = [(0, 0), (0, 0), *zip(pre, post, strict=True)]
        total = self._correlate(np.pad(flat, sides), ones, stride, one)
        filled = np.pad(
            np.ones((1, 1, *x.shape[2:])), sides, constant_values=float("include" in mode)
        )
        mean = total / self._correlate(filled, ones, stride, one)
        return mean.reshape(*x.shape[:2], *mean.shape[2:])

    def interpolate(self, x, mode, edge, dims, stride, padding):
        if mode == "nearest":
            return super().interpolate(x, mode, edge, dims, stride, padding)
        from scipy.ndimage import map_coordinates

        lines = [
            [float(row * step - pad) for row in range(rows)]
            for rows, step, pad in zip(dims[2:], stride, padding, strict=True)
        ]
        places = np.meshgrid(*lines, indexing="ij")
        outside = "nearest" if edge else "grid-constant"
        images = [map_coordinates(image, places, order=1, mode=outside)
                  for image in x.reshape(-1, *x.shape[2:])]  # fmt: skip
        return np.array(images).reshape(*x.shape[:2], *dims[2:])

    def erf(self, x):
        from scipy.special import erf

        return erf(x)

    def softmax(self, x):
        from scipy.special import softmax

        return softmax(x, axis=-1)

    def logsumexp(self, x):
        from scipy.special import logsumexp

        return logsumexp(x, axis=-1, keepdims=True)


class PyTorch:
    """References of torch.nn.functional and torch's autograd."""

    name = "PyTorch"

    def __init__(self):
        import torch

        self.torch, self.F = torch, torch.nn.functional

    def leaf(self, array):
        return self.torch.tensor(array, requires_grad=True)

    def gradients(self, forward, leaves, weight, got, _rng):
        (forward(leaves) * self.torch.tensor(weight)).sum().backward()
        errors = [0.0]
        for leaf, gradient in got.items():
            wanted = leaves[leaf].grad
            wanted = np.zeros_like(gradient) if wanted is None else wanted.numpy()
            errors.append(np.max(np.abs(gradient - wanted) / (1 + np.abs(wanted))))
        return max(errors)

    def value(self, x):
        return x.detach().numpy()

    def _of_space(self, name, space):
        return getattr(self.F, f"{name}{space}d")

    def _padded(self, x, pre, post, outside=0.0):
        sides = [side for pair in zip(pre, post, strict=True) for side in reversed(pair)][::-1]
        return self.F.pad(x, sides, value=outside)

    def convolution(self, x, w, groups, pre, post, stride, dilation):
        numbers = {"stride": stride, "dilation": dilation, "groups": groups}
        return self._of_space("conv", len(stride))(self._padded(x, pre, post), w, **numbers)

    def pool(self, x, mode, window, pre, post, stride):
        space = len(window)
        if mode == "maxpool":
            whole = self._padded(x, pre, post, -math.inf)
            return self._of_space("max_pool", space)(whole, window, stride)
        mean = self._of_space("avg_pool", space)
        counted = self._padded(self.torch.ones_like(x), pre, post, float("include" in mode))
        whole = mean(self._padded(x, pre, post), window, stride)
        return whole / mean(counted, window, stride)

    def interpolate(self, x, mode, edge, dims, stride, padding):
        torch, outside = self.torch, "border" if edge else "zeros"
        if mode == "nearest":
            for axis, rows in enumerate(dims[2:], 2):
                matrix = interpolation(
                    mode, edge, x.shape[axis], rows, stride[axis - 2], padding[axis - 2]
                )
                picked = x.index_select(axis, torch.tensor(matrix.argmax(1)))
                counts = [-1 if at == axis else 1 for at in range(x.ndim)]
                x = picked * torch.tensor(matrix.sum(1)).reshape(counts)
            return x
        lines = [
            [2 * (float(row * step - pad) + 0.5) / size - 1 for row in range(rows)]
            for rows, step, pad, size in zip(dims[2:], stride, padding, x.shape[2:], strict=True)
        ]
        if x.ndim == 3:  # `grid_sample` takes images of two or three dimensions.
            x, lines = x.unsqueeze(2), [[0.0], *lines]
        grid = torch.meshgrid(*(torch.tensor(line, dtype=x.dtype) for line in lines), indexing="ij")
        grid = torch.stack(grid[::-1], -1).expand(x.shape[0], *[-1] * len(lines), len(lines))
        y = self.F.grid_sample(x, grid, "bilinear", outside, align_corners=False)
        return y.reshape(dims)

    def activation(self, x, name):
        functions = {"tanh": self.torch.tanh, "sigmoid": self.torch.sigmoid, "swish": self.F.silu}
        if name == "gelu_approx_tanh":
            return self.F.gelu(x, approximate="tanh")
        return functions.get(name, getattr(self.F, name, None))(x)

    def binary(self, a, b, name):
        names = {"max": "maximum", "min": "minimum"}
        return getattr(self.torch, names.get(name, name))(a, b)

    def reduce(self, x, mode, axes):
        if mode in ("norm1", "norm2"):
            return self.torch.linalg.vector_norm(x, int(mode[-1]), axes, keepdim=True)
        name = {"add": "sum", "avg": "mean"}.get(mode, f"a{mode}")
        return getattr(self.torch, name)(x, axes, keepdim=True)

    def norm(self, x, scale, shift, axes, centred, epsilon):
        mean = x.mean(axes, keepdim=True) if centred else self.torch.zeros([1] * x.ndim)
        spread = x.var(axes, correction=0, keepdim=True) if centred else x.square().mean(
            axes, keepdim=True
        )  # fmt: skip
        inverse = self.torch.rsqrt(spread + epsilon)
        return (x - mean) * inverse * scale + shift, mean, inverse

    def softmax(self, x):
        return self.F.softmax(x, -1)

    def logsumexp(self, x):
        return self.torch.logsumexp(x, -1, keepdim=True)

    def attention(self, q, k, v, scale, bias, seen):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        seen = self.torch.tensor(seen).expand(*q.shape[:3], k.shape[2])
        some = seen.any(-1, keepdim=True)
        mask = self.torch.where(seen | ~some, 0.0, -math.inf) + bias
        o = self.F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
        stats = self.logsumexp(scale * q @ k.transpose(2, 3) + mask)
        return o * some, self.torch.where(some, stats, -math.inf)

    def permute(self, x, order):
        return x.permute(order)

    def concatenate(self, parts, axis):
        return self.torch.cat(parts, axis)


MODULES = {NumPy: "numpy", SciPy: "scipy", PyTorch: "torch"}


def is_installed(reference):
    return importlib.util.find_spec(MODULES[reference]) is not None
