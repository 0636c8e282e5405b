"""Exported to PyTorch: shapes without data, torch.compile and torch.export."""

import pytest

import keyfold as kf
from tests.torch.exports import exports, fresh_compiler, randn, scale, torch

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

__all__ = ["exports", "fresh_compiler", "scale"]


def test_fake_tensors_have_the_promised_strides(lib, ns, exports):
    lib.define("turned(Tensor x) -> Tensor")
    lib.impl("turned", lambda x: x.T * 1, "CPU")
    kf.register_fake(f"{ns}::turned", lambda x: x.T)
    turned = exports(f"{ns}::turned")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool):
            y = turned(torch.empty_strided((2, 3), (7, 2), dtype=dtype))
            assert (y.shape, y.stride(), y.dtype) == ((3, 2), (2, 7), dtype)
            huge = torch.empty(1 << 20, 1 << 20, dtype=dtype, device="cuda")
            assert turned(huge).device.type == "cuda"


def test_meta_tensors(scale):
    y = scale(torch.empty(2, 3, device="meta"))
    assert (y.shape, y.device.type) == ((2, 3), "meta")


def test_meta_tensors_beside_others_are_refused(exports):
    add = exports("aten::add")
    with pytest.raises(kf.DeviceError, match="on meta and have no data, others are on cpu"):
        add(torch.ones(2), torch.empty(2, device="meta"))
    assert add(torch.ones(()), torch.empty(2, device="meta")).device.type == "meta"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_has_it_in_one_graph(scale, backend):
    def f(x):
        return (scale(x.sin(), 3.0) * x).sum()

    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for n in (3, 4, 5):
        x = randn(n)
        (grad,) = torch.autograd.grad(compiled(x), x)
        (expected,) = torch.autograd.grad(f(x), x)
        assert grad.allclose(expected)


def test_symbolic_sizes_become_numbers_unless_a_fake_keeps_them(exports, ns):
    count = torch._dynamo.testing.CompileCounter
    add = exports("aten::add")
    counter = count()
    compiled = torch.compile(lambda x: add(x, x), fullgraph=True, backend=counter, dynamic=True)
    assert [compiled(torch.ones(n)).shape[0] for n in (3, 4, 5)] == [3, 4, 5]
    assert counter.frame_count == 3
    own = exports("aten::add", name=f"{ns}::add", fake=lambda a, b: torch.empty_like(a + b))
    counter = count()
    compiled = torch.compile(lambda x: own(x, x), fullgraph=True, backend=counter, dynamic=True)
    assert [compiled(torch.ones(n)).shape[0] for n in (3, 4, 5)] == [3, 4, 5]
    assert counter.frame_count == 1


def test_torch_export_has_it_as_a_node(scale):
    class Model(torch.nn.Module):
        def forward(self, x):
            return scale(x, 3.0)

    program = torch.export.export(Model(), (torch.ones(3),))
    assert scale.op in [node.target for node in program.graph.nodes]
    assert program.module()(torch.ones(3)).tolist() == [3, 3, 3]


def test_without_a_meta_kernel_a_trace_says_how_to_register_one(lib, ns, exports):
    lib.define("bare(Tensor x) -> Tensor")
    lib.impl("bare", lambda x: x * 1, "CPU")
    bare = exports(f"{ns}::bare")
    with pytest.raises(kf.MissingKernel, match="register_fake"):
        bare(torch.empty(2, device="meta"))
    with pytest.raises(Exception, match="no kernel registered for Meta"):
        torch.compile(bare.op, fullgraph=True, backend="eager")(torch.ones(2))
