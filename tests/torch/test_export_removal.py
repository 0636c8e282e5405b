"""Exports to PyTorch taken back, operators removed, and what is left of them."""

import gc
import weakref

import pytest

import keyfold as kf
from tests.torch.exports import exports, fresh_compiler, kt, randn, scale, torch

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

__all__ = ["exports", "fresh_compiler", "scale"]


def test_a_removed_keyfold_operator_is_an_error_in_torch(lib, ns):
    lib.define("gone(Tensor x) -> Tensor")
    lib.impl("gone", lambda x: x * 1, "CPU")
    with kt.export(f"{ns}::gone") as gone:
        y = gone(randn(2)).sum()
        lib.close()
        with pytest.raises(kf.OperatorRemoved, match=f"{ns}::gone was removed"):
            gone(torch.ones(2))
        with pytest.raises(kf.OperatorRemoved):
            y.backward()
        with pytest.raises(kf.OperatorRemoved):
            gone(torch.empty(2, device="meta"))


def test_an_operator_defined_again_can_be_exported_again(ns):
    for k in (2, 3):
        with kf.Library(ns) as lib:
            lib.define("times(Tensor x) -> Tensor")
            lib.impl("times", lambda x, k=k: x * k, "CPU")
        op = kt.export(f"{ns}::times")
        assert op(torch.ones(1)).tolist() == [k]
        lib.close()
    op.close()


def test_closing_takes_it_from_torch(scale, ns):
    assert hasattr(getattr(torch.ops, ns), "scale_backward")
    scale.close()
    scale.close()
    assert scale.closed
    assert "closed" in repr(scale)
    assert not hasattr(getattr(torch.ops, ns), "scale")
    assert not hasattr(getattr(torch.ops, ns), "scale_backward")
    with pytest.raises(kf.OperatorRemoved, match="was taken back from torch"):
        scale(torch.ones(2))
    with kt.export(f"{ns}::scale") as again:
        assert again(torch.ones(1)).tolist() == [2]


def test_what_still_points_to_a_closed_export_is_an_error_and_no_crash(lib, ns):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 1, "CPU")
    for _ in range(20):
        exported = kt.export(f"{ns}::f")
        y = exported(randn(2)).sum()
        exported.close()
        for x in (torch.ones(2), randn(2), torch.empty(2, device="meta")):
            with pytest.raises(RuntimeError, match=f"{ns}::f"):
                exported.op(x)
        with pytest.raises(kf.OperatorRemoved, match="taken back from torch before its backward"):
            y.backward()


def test_an_export_that_fails_leaves_nothing_behind(lib, ns, exports):
    exports("aten::exp", name=f"{ns}::f_backward")
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(kf.RegistrationError, match=f"{ns}::f_backward already"):
        kt.export(f"{ns}::f")
    assert not hasattr(getattr(torch.ops, ns), "f")


def test_closed_exports_are_freed(lib, ns):
    class Kernel:
        def __call__(self, x):
            return x * 1

    kernel = Kernel()
    alive = weakref.ref(kernel)
    lib.define("held(Tensor x) -> Tensor")
    lib.impl("held", kernel, "CPU")
    del kernel
    with kt.export(f"{ns}::held") as held:
        held(randn(2))
    del held
    lib.close()
    gc.collect()
    assert alive() is None
