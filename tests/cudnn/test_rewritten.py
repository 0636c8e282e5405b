"""Graphs that libcudnn refuses as they are: views and splits that it plans, compared on the CPU."""

import pytest

import keyfold as kf
from tests.cudnn.probe.cases import cases, refused
from tests.cudnn.probe.equal import difference

pytestmark = pytest.mark.one_python

# One of each kind of rewriting; the float16 ones are compared with what float16 rounds.
VIEWS = [
    "pointwise/RELU_FWD 1D [512]/f32/packed",
    "pointwise/RELU_FWD 6D [2, 3, 2, 3, 4, 5]/f32/packed",
    "pointwise/ADD image + [1,C,1,1]/f16/nchw",
    "norm/batch fwd inference (4 pointwise)/f32/nchw",
    "matmul/4D [2,4,512,512]/f16/packed",
    "conv/fprop true 1D (3D tensors)/f16/nhwc",
    "reduction/ADD row [8,512,512]->[8,512,1], f32 out/f16/packed",
    "reduction/MAX all [8,512,512]->[1,1,1], f32 out/f32/packed",
    "move/concat 2 along 0/f32/packed",
]
SPLITS = [
    "reduction/ADD N,H,W of an image ->[1,C,1,1], f32 out/f32/nchw",
    "reduction/row ADD then pointwise MUL (mean)/f32/packed",
    "conv/fprop + bias + relu/f16/nchw",
    "matmul/two matmuls chained/f16/packed",
    "other/SOFTMAX descriptor alone 4D + stats/f32/packed",
]


@pytest.mark.parametrize("case", VIEWS + SPLITS)
def test_what_is_refused_is_planned_by_views_and_splits(libcudnn, case):
    assert case in refused()
    graph = dict(cases())[case]()
    plan = graph.build(device="h100", tf32=True)
    said = " ".join(plan.steps)
    assert ("split into" in said) == (case in SPLITS)
    assert "without a copy" in said or case in SPLITS
    assert difference(graph, plan) < 2e-3


def test_a_policy_of_views_refuses_what_has_to_be_split(libcudnn):
    graph = dict(cases())["matmul/two matmuls chained/f16/packed"]()
    with pytest.raises(kf.NotSupported, match=r"cuDNN 9\.\d+\.\d+ has no plan"):
        graph.build(device="h100", rewrite="view")
    dict(cases())[VIEWS[0]]().build(device="h100", rewrite="view")


def test_float32_is_multiplied_as_tf32_only_where_that_is_allowed(libcudnn):
    graph = dict(cases())["matmul/batched [8,512,512]/f32/packed"]()
    with pytest.raises(kf.NotSupported, match="TF32, which tf32=True allows"):
        graph.build(device="h100")
    assert graph.build(device="h100", tf32=True).engine.startswith("cuDNN engine")


def test_a_scratch_memory_limit_and_a_policy_choose_among_engines(libcudnn):
    # Each of its engines is compiled before it is refused; those of attention took 25 s.
    graph = dict(cases())["norm/layer bwd/bf16/packed"]()
    with pytest.raises(kf.NotSupported, match="workspace_limit"):
        graph.build(device="h100", workspace_limit=0)
    with pytest.raises(kf.NotSupported, match="times plans on the card"):
        graph.build(device="h100", policy="autotune")
