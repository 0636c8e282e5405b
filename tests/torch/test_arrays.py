"""torch's tensors: what DLPack hides about them is resolved or refused."""

from __future__ import annotations

import gc
import threading
import warnings

import numpy as np
import pytest

import keyfold as kf

with warnings.catch_warnings():
    # torch warns of its own deprecated things at import.
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="torch isn't installed")

aten = kf.ops.aten


@pytest.fixture
def scale(op):
    operator, _ = op("scale(Tensor x, float k=2.0) -> Tensor", lambda x, k: x * k)
    return operator


def test_conjugated_tensors_have_their_own_values():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert x.is_conj()
    assert np.asarray(kf.asarray(x.resolve_conj())).tolist() == [1 - 2j, 3 + 1j]
    imaginary = x.imag
    assert imaginary.is_neg()
    assert aten.neg(imaginary).tolist() == [2.0, -1.0]
    assert aten.add(torch._neg_view(torch.ones(2)), torch.ones(2)).tolist() == [0.0, 0.0]


def test_a_conjugated_tensor_is_resolved_for_native_kernels(testing):
    x = torch.tensor([1 + 2j]).conj()
    # The kernel sees a resolved copy; an argument that it returns is the caller's object.
    assert testing.identity(x, x) is x
    fresh = aten.stack([x.imag, x.imag])
    assert fresh.tolist() == [[-2.0], [-2.0]]


def test_a_negated_tensor_cant_be_written():
    with pytest.raises(kf.NotSupported, match=r"argument 'self'.*negative bit.*resolve_conj"):
        aten.fill_(torch._neg_view(torch.ones(2)), 3.0)


def test_what_requires_grad_is_refused_where_gradients_would_be_lost(scale):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(kf.GradientError, match=r"argument 'self'.*detach\(\).*no_grad") as raised:
        aten.neg(x)
    assert "keyfold.torch.export" in str(raised.value)
    with torch.no_grad():
        assert aten.neg(x).tolist() == [-1.0, -1.0]
    with torch.inference_mode():
        assert aten.neg(x).tolist() == [-1.0, -1.0]
    assert aten.neg(x.detach()).tolist() == [-1.0, -1.0]
    # A Python kernel computes with torch, which records.
    result = scale(x)
    result.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_views_and_parameters_are_tensors():
    x = torch.arange(12.0).reshape(3, 4)
    assert aten.neg(x[1:, ::2]).tolist() == [[-4.0, -6.0], [-8.0, -10.0]]
    computed = (torch.ones(2, requires_grad=True) * 2)[:1]
    with pytest.raises(kf.GradientError):
        aten.neg(computed)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert type(aten.neg(parameter)) is torch.Tensor


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        x = torch.ones(2)
    assert aten.neg(x).tolist() == [-1.0, -1.0]
    assert aten.neg(x[:1]).tolist() == [-1.0]


def test_meta_tensors_go_to_the_meta_kernel():
    x = torch.empty(2, 3, device="meta", dtype=torch.float16)
    result = aten.transpose(x, 0, 1)
    assert result.device.type == "meta"
    assert (result.shape, result.stride(), result.dtype) == ((3, 2), (1, 3), torch.float16)
    again = aten.transpose(result, 0, 1)
    assert (again.shape, again.stride()) == ((2, 3), (3, 1))


def test_sparse_quantized_and_nested_tensors_bring_their_keys(lib, ns):
    sparse = torch.eye(2).to_sparse()
    assert kf.DispatchKeySet.from_tensors([sparse]) == kf.DispatchKeySet("Sparse", "CPU")
    with pytest.raises(kf.MissingKernel, match="Sparse"):
        aten.neg(sparse)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2, "Sparse")
    result = getattr(kf.ops, ns).f(sparse)
    assert result.is_sparse
    assert result.to_dense().tolist() == [[2.0, 0.0], [0.0, 2.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert "Quantized" in kf.DispatchKeySet.from_tensors([quantized])
    assert "Nested" in kf.DispatchKeySet.from_tensors([nested])


def test_tensors_without_memory_are_refused_in_words():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
        with pytest.raises((kf.ExchangeError, RuntimeError)):
            aten.neg(fake)
    with pytest.raises(kf.ExchangeError, match="null"):
        aten.neg(torch._efficientzerotensor((3,)))
    for transform in [torch.func.vmap, torch.func.functionalize]:
        with pytest.raises(kf.ExchangeError):
            transform(aten.neg)(torch.ones(2, 3))
    with pytest.raises((kf.ExchangeError, kf.GradientError)):
        torch.func.grad(lambda x: aten.neg(x).sum())(torch.ones(3))


def test_memory_that_is_shared_until_it_is_written():
    base = torch.ones(3)
    lazy = torch._lazy_clone(base)
    assert aten.neg(lazy).tolist() == [-1.0, -1.0, -1.0]
    aten.fill_(lazy, 5.0)
    assert base.tolist() == [1.0, 1.0, 1.0]
    assert lazy.tolist() == [5.0, 5.0, 5.0]


def test_a_result_keeps_memory_that_the_tensor_gives_up():
    x = torch.arange(6.0).reshape(2, 3)
    view = aten.transpose(x, 0, 1)
    held = kf.from_dlpack(aten.transpose(x, 0, 1))
    x.set_(torch.zeros(1))
    gc.collect()
    junk = [torch.full((6,), 9.0) for _ in range(64)]
    assert np.asarray(held).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert view.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert len(junk) == 64


def test_a_resized_tensor_is_looked_at_anew():
    x = torch.ones(4)
    assert aten.sum(x).item() == 4.0
    x.resize_(2)
    assert aten.sum(x).item() == 2.0
    x.set_(torch.full((3, 1), 2.0))
    assert aten.sum(x).item() == 6.0


def test_subclasses_count_and_results_are_plain():
    class Mine(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Mine)
    assert kf.DispatchKeySet.from_tensors([x]) == kf.DispatchKeySet("CPU")
    assert isinstance(aten.neg(x), torch.Tensor)
    assert aten.neg(x).tolist() == [-1.0, -1.0]


def test_many_dimensions_and_odd_strides():
    x = torch.arange(2.0**7).reshape((2,) * 7).permute(6, 0, 5, 1, 4, 2, 3)
    assert torch.equal(aten.neg(x), -x)
    expanded = torch.ones(1, 3).expand(4, 3)
    assert torch.equal(aten.add(expanded, expanded), expanded * 2)
    assert aten.flip(torch.arange(3.0), [0]).tolist() == [2.0, 1.0, 0.0]


def test_other_threads_see_the_same():
    x = torch.arange(1000.0)
    results = []
    threads = [threading.Thread(target=lambda: results.append(aten.neg(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, -x) for result in results)


def test_results_own_their_memory():
    x = torch.ones(3)
    result = aten.exp(x)
    copy = result.clone()
    del x
    gc.collect()
    assert torch.equal(result, copy)
    result.add_(1.0)
    assert torch.allclose(result, copy + 1.0)


def test_no_reference_is_left_behind(testing):
    import sys

    x = torch.ones(3)
    before = sys.getrefcount(x)
    for _ in range(50):
        aten.neg(x)
        testing.identity(x, x)
        aten.transpose(torch.ones(2, 2), 0, 1)
    gc.collect()
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16"])
def test_both_ways_of_reading_agree(dtype):
    """The general way is taken for whatever isn't plain: a lazy clone, here."""
    x = torch.ones(2, 3, dtype=getattr(torch, dtype))[1:].T
    for way in [x, torch._lazy_clone(x)]:
        result = aten.transpose(way, 0, 1)
        assert (result.shape, result.dtype) == ((1, 3), x.dtype)
        assert torch.equal(result, x.T)
