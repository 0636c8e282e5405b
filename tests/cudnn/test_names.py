"""NVIDIA's frontend's names: those that are here, and what errors say of those that aren't."""

import enum
import importlib.util
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import keyfold as kf
from keyfold.cudnn import _names

needs_frontend = pytest.mark.skipif(
    importlib.util.find_spec("cudnn") is None, reason="nvidia-cudnn-frontend isn't installed"
)


def like_nvidias(name, *members):
    """An enumeration that says of itself what pybind's of the frontend do."""
    return enum.Enum(name, members, module="cudnn._compiled_module")


def test_names_are_strings():
    cudnn = kf.cudnn
    assert cudnn.pygraph is cudnn.Graph
    assert cudnn.data_type.HALF == "float16"
    assert cudnn.norm_forward_phase.TRAINING == "training"
    assert cudnn.reduction_mode.MUL_NO_ZEROS == "mul_no_zeros"
    assert cudnn.diagonal_alignment.BOTTOM_RIGHT == "bottom_right"
    with pytest.raises(AttributeError, match="data_type has no FP4_E2M1; it has NOT_SET, FLOAT,"):
        cudnn.data_type.FP4_E2M1


def test_the_frontends_own_constants_do():
    types = like_nvidias("data_type", "HALF", "NOT_SET", "FP4_E2M1")
    g = kf.cudnn.Graph(io_data_type=types.HALF)
    x = g.tensor([2, 3, 4, 5], data_type=types.NOT_SET)
    assert x.data_type == "float16"
    with pytest.raises(kf.DTypeError, match="no data type FP4_E2M1; they have NOT_SET, FLOAT"):
        g.tensor([2], data_type=types.FP4_E2M1)
    modes = like_nvidias("reduction_mode", "ADD")
    assert g.reduction(x, modes.ADD).dim == [1, 1, 1, 1]
    scale = g.tensor([1, 3, 4, 5])
    phases = like_nvidias("norm_forward_phase", "INFERENCE")
    assert g.layernorm(phases.INFERENCE, x, scale, scale)[1] is None
    # An enumeration of anybody else's is none of them.
    with pytest.raises(kf.BindingError, match="mode takes a string"):
        g.reduction(x, enum.Enum("reduction_mode", "ADD").ADD)


def test_every_reduction_mode_is_one():
    for name, mode in vars(kf.cudnn.reduction_mode).items():
        if not name.startswith("_"):
            g = kf.cudnn.Graph(io_data_type="float32")
            g.reduction(g.tensor([2, 3]), mode).set_output(True)
            g.validate()


def test_a_tensor_takes_its_first_arguments_by_position():
    g = kf.cudnn.Graph()
    x = g.tensor([2, 3], [1, 2], kf.cudnn.data_type.FLOAT)
    assert (x.dim, x.stride, x.data_type) == ([2, 3], [1, 2], "float32")
    assert not x.get_is_pass_by_value()


@pytest.mark.parametrize("kind", [None, "RUNTIME_PARAM", kf.cudnn.scalar_type.COMPILE_TIME_CONST])
def test_a_scalar_has_nvidias_name(kind):
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor([3], name="x")
    y = g.mul(x, g.tensor_scalar(2.5, kind, name="factor")).set_output(True)
    assert g["factor"].value == 2.5
    np.testing.assert_array_equal(g.build()({x: np.ones(3, np.float32)})[y], [2.5] * 3)
    with pytest.raises(kf.InvalidValue, match="not 'constant'"):
        g.tensor_scalar(2.5, "constant")


def test_names_that_are_not_here_say_what_to_write():
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor([2])
    for owner, name, says in [
        (
            g,
            "execute",
            r"'keyfold.cudnn.Graph' object has no attribute 'execute'; call the plan: out = plan",
        ),
        (g, "create_execution_plans", r"g\.build\(device=\.\.\.\) checks"),
        (g, "key", r"g\.signature\(\)"),
        (x, "set_is_pass_by_value", "is_pass_by_value=True"),
        (kf.cudnn, "create_handle", "no handles"),
        (kf.cudnn, "heur_mode", "policy="),
    ]:
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=says):
            getattr(owner, name)
        assert name not in dir(owner)
    with pytest.raises(AttributeError, match=r"no attribute 'rely'$"):
        kf.cudnn.rely


def test_names_with_advice_are_not_here():
    for names, owner in [
        (_names.GRAPH, kf.cudnn.Graph),
        (_names.TENSOR, kf.cudnn.GraphTensor),
        (_names.MODULE, kf.cudnn),
    ]:
        assert [name for name in names if hasattr(owner, name)] == []


def test_arguments_that_are_not_here_say_what_to_write():
    with pytest.raises(kf.BindingError, match=r"has no handle=: there are no handles"):
        kf.cudnn.Graph(handle=object())
    g = kf.cudnn.Graph(io_data_type="float32", handle=None)
    with pytest.raises(
        kf.BindingError, match=r"tensor\(\) has no alignment_value=: .*alignment= is"
    ):
        g.tensor([2], alignment_value=16)
    q = g.tensor([1, 1, 4, 8])
    with pytest.raises(kf.BindingError, match=r"sdpa\(\) has no is_inference=: generate_stats"):
        g.sdpa(q, q, q, is_inference=False)


def frontend(script):
    """What a script prints in a process of its own, as JSON: the frontend loads libraries."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_frontend
def test_advice_is_given_for_names_that_the_frontend_has():
    graph, fields, module = frontend("""
        import cudnn, json
        fields = dir(cudnn.Tensor) + list(cudnn.Tensor.__dataclass_fields__)
        print(json.dumps([dir(cudnn.pygraph), fields, dir(cudnn)]))
    """)
    assert _names.GRAPH.keys() - set(graph) == set()
    assert _names.TENSOR.keys() - set(fields) == set()
    assert _names.MODULE.keys() - set(module) == set()


@needs_frontend
def test_operations_have_the_frontends_arguments():
    """The tensors of functions of elements, by name; and constants of the frontend's own."""
    arguments, types = frontend("""
        import cudnn, json
        import keyfold as kf
        g = kf.cudnn.pygraph(io_data_type=cudnn.data_type.HALF, name="n")
        x = g.tensor(dim=[2, 3], stride=[3, 1], data_type=cudnn.data_type.BFLOAT16)
        y = g.reduction(input=x, mode=cudnn.reduction_mode.ADD)
        print(json.dumps([cudnn.pygraph._POINTWISE_TENSOR_ARGS, [x.data_type, y.dim]]))
    """)
    assert types == ["bfloat16", [1, 1]]
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor([2, 3])
    for name, tensors in arguments.items():
        assert getattr(g, name)(**dict.fromkeys(tensors, x)).dim == [2, 3]
