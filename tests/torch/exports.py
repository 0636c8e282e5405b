"""Shared by the tests of exports to PyTorch: fixtures, a source of tensors, torch's checks."""

import contextlib
import warnings

import pytest

import keyfold as kf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at import
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: no exports are tested")

import keyfold.torch as kt

__all__ = ["DOUBLE", "exports", "fresh_compiler", "kt", "passes", "randn", "scale", "torch"]

DOUBLE = torch.float64


@pytest.fixture
def exports():
    """`exports(op, ...)`: as `export`, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(kt.export(*args, **kwargs))


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def randn(*shape, grad=True):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, dtype=DOUBLE, generator=generator).requires_grad_(grad)


def passes(op, *args, **kwargs):
    """Checks an exported operator by torch's own tools."""
    found = torch.library.opcheck(op.op, args, kwargs)
    assert set(found.values()) == {"SUCCESS"}, found


@pytest.fixture
def scale(lib, ns, exports):
    """An operator of one's own with everything: kernel, shapes, derivative."""
    lib.define("scale(Tensor x, float k=2.0) -> Tensor")
    lib.impl("scale", lambda x, k: x * k, "CPU")
    kf.register_fake(f"{ns}::scale", lambda x, k: x)
    kf.register_autograd(
        f"{ns}::scale",
        lambda ctx, grad: (grad * ctx.k, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
    )
    return exports(f"{ns}::scale")
