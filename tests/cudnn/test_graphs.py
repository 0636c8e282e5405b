"""Graphs in Python: tensors, operations, JSON, drawings, mistakes."""

import copy
import inspect
import json
import pickle
import xml.etree.ElementTree as ElementTree
from fractions import Fraction

import numpy as np
import pytest

import keyfold as kf
from keyfold.cudnn._activations import Activations
from keyfold.cudnn._base import GraphBase
from keyfold.cudnn._pointwise import PointwiseOperations

NHWC = [200704, 1, 3584, 64]
# Methods that add an operation of another name.
ALIASES = {
    "bias": "add",
    "scale": "mul",
    "leaky_relu": "relu",
    "leaky_relu_backward": "relu_backward",
}


def block():
    """The graph of docs/cudnn.md."""
    g = kf.cudnn.Graph(io_data_type="float32", compute_data_type="float32", name="block")
    x = g.tensor(dim=[8, 64, 56, 56], stride=NHWC, name="x")
    w = g.tensor(dim=[32, 64, 3, 3], stride=[576, 1, 192, 64], name="w")
    b = g.tensor(dim=[1, 32, 1, 1], name="b")
    c = g.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y = g.relu(g.bias(c, b)).set_output(True).set_name("y")
    return g, y


def test_a_graph_infers_sizes_strides_and_data_types():
    g, y = block()
    assert (y.dim, y.data_type, y.is_virtual) == ([8, 32, 56, 56], "float32", False)
    assert y.stride == [100352, 1, 1792, 32]
    assert g["x"].stride == NHWC
    assert repr(y) == (
        "GraphTensor('y', float32, dim=[8, 32, 56, 56], stride=[100352, 1, 1792, 32])"
    )
    assert repr(g) == "Graph('block', 6 tensors, operations: conv_fprop, add, relu)"
    assert [tensor.name for tensor in g] == ["x", "w", "b", "", "", "y"]
    g.validate()


def test_setters_change_a_tensor_and_return_it():
    g = kf.cudnn.Graph()
    x = g.tensor(dim=[2, 3], data_type="float16", uid=7)
    assert (x.uid, x.get_dim(), x.get_stride()) == (7, [2, 3], [3, 1])
    changed = x.set_uid(9).set_name("x").set_dim([4, 5]).set_data_type(kf.bfloat16)
    assert changed is x
    assert g[9] is x
    assert g["x"] is x
    assert (x.get_uid(), x.get_name(), x.get_dim(), x.get_stride()) == (9, "x", [4, 5], [5, 1])
    assert x.get_data_type() == "bfloat16"
    assert x.set_stride([1, 4]).stride == [1, 4]
    y = g.exp(x)
    assert y.is_virtual
    assert not y.get_output()
    assert y.get_is_virtual()
    assert y.set_output(True).get_output()
    assert not y.set_is_virtual(False).is_virtual
    # What is computed from a tensor follows it.
    assert x.set_dim([6, 2]) is x
    assert y.dim == [6, 2]


@pytest.mark.parametrize(
    "given",
    ["float16", kf.float16, np.float16, np.dtype("float16"), kf.cudnn.data_type.HALF],
)
def test_a_data_type_is_given_in_many_ways(given):
    assert kf.cudnn.Graph().tensor(dim=[1], data_type=given).data_type == "float16"


def test_eight_bit_floats_have_names():
    g = kf.cudnn.Graph(io_data_type=kf.cudnn.data_type.FP8_E4M3)
    assert g.tensor(dim=[16, 16]).data_type == "float8_e4m3fn"


def test_a_tensor_like_an_array_has_its_sizes_strides_and_data_type():
    g = kf.cudnn.Graph()
    array = np.zeros((2, 5, 3, 4), np.float64).transpose(0, 3, 1, 2)
    x = g.tensor_like(array, name="x")
    assert (x.dim, x.stride, x.data_type) == ([2, 4, 5, 3], [60, 1, 12, 4], "float64")
    assert g.tensor_like(x).stride == x.stride
    assert g.tensor_like(kf.zeros((2, 3))).dim == [2, 3]


def test_scalars_belong_to_the_graph():
    g = kf.cudnn.Graph(io_data_type="float32")
    half = g.scalar(0.5, name="half")
    assert (half.value, half.is_pass_by_value, half.data_type) == (0.5, True, "float32")
    y = g.mul(g.tensor(dim=[2, 3]), half).set_output()
    assert y.dim == [2, 3]
    assert '"scalar": 0.5' in g.to_json()
    assert g.scalar(3, "int32").value == 3


def one_of_each():
    """Calls of every pointwise method, by its name."""
    special = {
        "binary_select": lambda g, x: g.binary_select(x, x, x),
        "gen_index": lambda g, x: g.gen_index(x, 1),
        "leaky_relu": lambda g, x: g.leaky_relu(x, 0.1),
        "leaky_relu_backward": lambda g, x: g.leaky_relu_backward(x, x, 0.1),
    }
    unary = {"relu", "elu", "softplus", "swish", "identity", "abs", "ceil", "cos", "erf", "exp"}
    unary |= {"floor", "log", "neg", "reciprocal", "rsqrt", "sin", "sqrt", "tan", "logical_not"}
    unary |= {"tanh", "sigmoid", "gelu", "gelu_approx_tanh"}
    methods = vars(PointwiseOperations) | vars(Activations)
    names = [name for name in methods if not name.startswith("_")]
    for name in names:
        if name in special:
            yield name, special[name]
        elif name in unary:
            yield name, lambda g, x, name=name: getattr(g, name)(x)
        else:
            yield name, lambda g, x, name=name: getattr(g, name)(x, x)


@pytest.mark.parametrize(("name", "call"), list(one_of_each()))
def test_every_pointwise_method_adds_its_operation(name, call):
    g = kf.cudnn.Graph(io_data_type="float32")
    y = call(g, g.tensor(dim=[2, 3]))
    assert y.dim == [2, 3]
    (operation,) = json.loads(g.to_json())["operations"]
    mode = operation["operation"]["pointwise"]["mode"]
    assert mode == ALIASES.get(name, name)


def operations():
    """The methods of a graph that add an operation."""
    classes = [cls for cls in kf.cudnn.Graph.__mro__[1:] if cls not in (GraphBase, object)]
    return {n: f for cls in classes for n, f in vars(cls).items() if not n.startswith("_")}


@pytest.mark.parametrize(("name", "method"), operations().items())
def test_signatures_say_all_arguments(name, method):
    parameters = inspect.signature(method).parameters
    assert not {p.kind for p in parameters.values()} & {inspect.Parameter.VAR_KEYWORD}
    for option, default in (("compute_data_type", None), ("name", "")):
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option].default == default


@pytest.mark.parametrize(("name", "call"), list(one_of_each()))
def test_every_pointwise_method_passes_its_options_on(name, call):
    class Options(kf.cudnn.Graph):
        def __getattribute__(self, attribute):
            found = super().__getattribute__(attribute)
            if attribute != name:
                return found
            return lambda *given: found(*given, compute_data_type="float64", name="mine")

    g = Options(io_data_type="float32")
    call(g, g.tensor(dim=[2, 3]))
    (operation,) = json.loads(g.to_json())["operations"]
    assert (operation["name"], operation["compute"]) == ("mine", "float64")


def test_every_mode_has_a_method():
    modes = {name for name, _ in one_of_each()} - ALIASES.keys()
    with pytest.raises(kf.InvalidValue, match="unknown variant") as refused:
        kf.cudnn.Graph()._native.add("f", '{"pointwise": {"mode": "?"}}', [], ["y"], None, "", None)
    listed = str(refused.value).partition("expected one of")[2].partition(" at line")[0]
    assert modes == {name.strip("`, ") for name in listed.split(",")}


def test_attributes_are_those_that_were_given():
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor(dim=[2, 3])
    g.relu(x, negative_slope=0.1, upper_clip=6.0, compute_data_type="float64", name="cut")
    g.add(x, x, alpha1=2.0)
    cut, add = json.loads(g.to_json())["operations"]
    relu = cut["operation"]["pointwise"]
    assert (relu["relu_lower_clip_slope"], relu["relu_upper_clip"]) == (0.1, 6.0)
    assert (cut["name"], cut["compute"]) == ("cut", "float64")
    assert add["operation"]["pointwise"]["alpha1"] == 2.0


def test_other_operations_infer_sizes():
    g = kf.cudnn.Graph(io_data_type="float32")
    image = g.tensor(dim=[2, 4, 8, 8])
    assert g.conv_fprop(image, g.tensor(dim=[6, 2, 3, 3]), stride=2, padding=1).dim == [2, 6, 4, 4]
    loss = g.tensor(dim=[2, 6, 8, 8])
    assert g.conv_dgrad(loss, g.tensor(dim=[6, 4, 3, 3]), padding=1).dim == [2, 4, 8, 8]
    assert g.conv_wgrad(image, loss, padding=1).set_dim([6, 4, 3, 3]).dim == [6, 4, 3, 3]
    pooled, index = g.resample(image, window=2, generate_index=True)
    assert pooled.dim == index.dim == [2, 4, 4, 4]
    back = g.resample_backward(pooled, index=index, window=2)
    assert back.dim == [2, 4, 8, 8]
    assert g.resample(image, window=2, resampling_mode="avgpool_include_padding")[1] is None
    half, quarter = Fraction(1, 2), [Fraction(1, 4), 0]
    twice, _ = g.resample(
        image, window=1, stride=half, pre_padding=quarter, resampling_mode="bilinear"
    )
    assert twice.dim == [2, 4, 15, 15]
    with pytest.raises(kf.BindingError, match=r"stride takes an int, a fractions.Fraction"):
        g.resample(image, window=1, stride=0.5)
    matrix = g.tensor(dim=[5, 2, 3])
    assert g.matmul(matrix, g.tensor(dim=[5, 3, 4])).dim == [5, 2, 4]
    assert g.reduction(matrix, "add", dim=[5, 1, 3]).dim == [5, 1, 3]
    assert g.reduction(matrix, "MAX").dim == [1, 1, 1]
    assert g.reshape(matrix, [5, 6]).dim == [5, 6]
    assert g.transpose(matrix, [2, 0, 1]).dim == [3, 5, 2]
    assert g.slice(matrix, [slice(1, 4), slice(None), slice(0, 3, 2)]).dim == [3, 2, 2]
    assert g.concatenate([matrix, matrix], axis=1).dim == [5, 4, 3]
    assert [t.dim for t in g.genstats(image)] == [[1, 4, 1, 1]] * 2
    assert g.softmax(matrix)[0].dim == [5, 2, 3]
    q, kv = g.tensor(dim=[2, 8, 16, 32]), g.tensor(dim=[2, 2, 24, 32])
    o, stats = g.sdpa(q, kv, kv, attn_scale=0.2, use_causal_mask=True, generate_stats=True)
    assert (o.dim, stats.dim) == ([2, 8, 16, 32], [2, 8, 16, 1])
    grads = g.sdpa_backward(q, kv, kv, o, o, stats, attn_scale=0.2, use_causal_mask=True)
    assert [t.dim for t in grads] == [q.dim, kv.dim, kv.dim]


def test_norms_give_statistics_in_training():
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor(dim=[2, 4, 8, 8])
    channel = [g.tensor(dim=[1, 4, 1, 1]) for _ in range(4)]
    y, mean, inv, next_mean, next_var = g.batchnorm(x, *channel, epsilon=1e-3, momentum=0.1)
    assert [t.dim for t in (y, mean, inv, next_mean, next_var)] == [x.dim] + [[1, 4, 1, 1]] * 4
    assert g.batchnorm(x, *channel[:2])[3:] == (None, None)
    assert g.batchnorm_inference(x, *channel).dim == x.dim
    assert next(t.dim for t in g.batchnorm_backward(x, x, channel[0], mean, inv)) == x.dim
    y, mean, inv = g.instancenorm("training", x, *channel[:2])
    assert mean.dim == inv.dim == [2, 4, 1, 1]
    assert len(g.instancenorm_backward(x, x, channel[0], mean, inv)) == 3
    y, mean, inv = g.groupnorm("TRAINING", x, *channel[:2], groups=2)
    assert y.dim == x.dim
    assert len(g.groupnorm_backward(x, x, channel[0], mean, inv, groups=2)) == 3
    rows = g.tensor(dim=[6, 5, 1, 1])
    scale = g.tensor(dim=[1, 5, 1, 1])
    y, mean, inv = g.layernorm("training", rows, scale, scale)
    assert mean.dim == [6, 1, 1, 1]
    assert len(g.layernorm_backward(rows, rows, scale, mean, inv)) == 3
    gradients = g.layernorm_backward(rows, rows, scale, mean, inv, epsilon=1e-3)
    assert [t.dim for t in gradients] == [rows.dim, scale.dim, scale.dim]
    assert g.tensors[-4].value == 1e-3
    assert g.layernorm("inference", rows, scale, scale)[1:] == (None, None)
    y, inv = g.rmsnorm("training", rows, scale)
    assert g.rmsnorm_backward(rows, rows, scale, inv)[2] is None
    assert g.rmsnorm_backward(rows, rows, scale, inv, has_dbias=True)[2].dim == scale.dim


def test_a_graph_survives_json():
    g, y = block()
    again = kf.cudnn.Graph.from_json(g.to_json())
    assert again.to_json() == g.to_json()
    assert again.signature() == g.signature()
    assert again["y"].dim == y.dim
    assert again.name == "block"


COPIES = [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))]


@pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_a_graph_is_copied_and_pickled(copied):
    g, _ = block()
    again = copied(g)
    assert type(again) is kf.cudnn.Graph
    assert again is not g
    assert again.to_json() == g.to_json()
    # They go on by themselves.
    again.neg(again["y"])
    assert (len(again.tensors), len(g.tensors)) == (7, 6)
    unfinished = kf.cudnn.Graph(name="unfinished", compute_data_type="float64")
    unfinished.exp(unfinished.tensor([2]))
    assert copied(unfinished).to_json() == unfinished.to_json()


def test_a_tensor_is_copied_with_its_graph():
    g, y = block()
    assert copy.copy(y) is y
    for copied in COPIES[1:]:
        graph, tensor, arrays = copied((g, y, {y: 1}))
        assert graph["y"] is tensor
        assert tensor is not y
        assert arrays == {tensor: 1}


def test_a_signature_depends_on_what_is_computed_alone():
    (g, _), (other, y) = block(), block()
    assert g.signature() == other.signature()
    assert len(g.signature()) == 32
    y.set_uid(100).set_name("result")
    assert g.signature() == other.signature()
    other["b"].set_data_type("float16")
    assert g.signature() != other.signature()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "isn't JSON"),
        ("[]", "isn't a JSON object"),
        ('{"format": 3}', "has format 3, which a later version wrote"),
        ('{"format": 2, "format": 2}', '"format" is there twice'),
        ("{}", "has no format that is known"),
        ('{"format": 1, "tensors": [], "operations": [1]}', r"operations\[0\]"),
        ('{"format": 1, "tensors": [{"uid": "x"}], "operations": []}', r"tensors\[0\]\.uid"),
        ('{"format": 1, "tensors": [], "operations": [], "extra": 0}', "extra"),
    ],
)
def test_damaged_json_is_refused_with_its_place(text, says):
    with pytest.raises(kf.InvalidValue, match=says):
        kf.cudnn.Graph.from_json(text)


def test_drawings_are_readable_by_what_they_are_for():
    g, _ = block()
    picture = ElementTree.fromstring(g.draw())
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"conv_fprop", "padding [1, 1]", "f32 [8, 64, 56, 56]", "NHWC"} <= set(texts)
    assert g._repr_svg_() == g.draw("svg")
    assert g.draw("dot").startswith('digraph "block" {')
    assert g.draw("mermaid").startswith("flowchart TD\n")
    with pytest.raises(kf.InvalidValue, match='"svg", "mermaid" or "dot", not "png"'):
        g.draw("png")


def test_a_graph_that_is_not_valid_is_drawn():
    g = kf.cudnn.Graph()
    x = g.tensor(dim=[2], name="<&>")
    g.relu(x)
    with pytest.raises(kf.Error):
        g.validate()
    ElementTree.fromstring(g.draw())


def mistakes():
    def of_another_graph(g, x):
        kf.cudnn.Graph().relu(x)

    yield kf.ShapeError, "conv_fprop", lambda g, x: g.conv_fprop(x, g.tensor(dim=[4, 3, 3, 3]))
    yield kf.ShapeError, "add", lambda g, x: g.add(x, g.tensor(dim=[2, 4, 7, 8]))
    yield kf.BindingError, "of another graph", of_another_graph
    yield (
        kf.BindingError,
        "relu.*: x is a tensor of the graph.*not ndarray",
        (lambda g, x: g.relu(np.ones(3))),
    )
    yield kf.InvalidValue, "wrong attributes", lambda g, x: g.reduction(x, "median")
    yield kf.InvalidValue, "a tensor with uid 1", lambda g, x: g.tensor(dim=[1], uid=1)
    yield kf.InvalidValue, "can't get the uid 0", lambda g, x: x.set_uid(0)
    yield kf.ShapeError, "strides", lambda g, x: g.tensor(dim=[2, 3], stride=[1])
    yield kf.DTypeError, "no dtype", lambda g, x: g.tensor(dim=[2, 3], data_type="float33")
    yield kf.InvalidValue, "no tensor 'z'", lambda g, x: g["z"]
    yield (
        kf.BindingError,
        "padding=, or pre_padding=",
        (lambda g, x: g.conv_fprop(x, x, padding=1, pre_padding=1)),
    )
    yield kf.BindingError, "stride takes an int", lambda g, x: g.conv_fprop(x, x, stride="a")
    yield kf.BindingError, "a list of 4 slices", lambda g, x: g.slice(x, [slice(1)])
    yield kf.InvalidValue, "norm_forward_phase", lambda g, x: g.layernorm("test", x, x, x)
    yield (
        kf.BindingError,
        "with use_padding_mask",
        (lambda g, x: g.sdpa(x, x, x, use_padding_mask=True)),
    )
    yield kf.BindingError, "a scalar is an int or a float", lambda g, x: g.scalar("1")


@pytest.mark.parametrize(("error", "says", "mistake"), list(mistakes()))
def test_a_mistake_is_named_and_changes_nothing(error, says, mistake):
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor(dim=[2, 4, 8, 8])
    operations = repr(g).partition("operations")
    with pytest.raises(error, match=says):
        mistake(g, x)
    assert repr(g).partition("operations")[2] == operations[2]
