"""The functions that call one operator, which are made from the operators' rows."""

import _thread
import ast
import copy
import inspect
import pickle
import pydoc
import re
import sys
import threading
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keyfold as kf
from keyfold._default import dispatcher as _default
from keyfold._ops import _operators

NAMES = _operators.__all__
X = kf.asarray([[1.0, 2.0], [3.0, 4.0]])
PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def _without_types(signature):
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_says_what_it_is(name):
    function = getattr(kf, name)
    assert isinstance(function, kf.OperatorFunction)
    assert inspect.isroutine(function)
    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == "keyfold"
    assert function.__doc__.startswith("Return ")
    assert function.__doc__.splitlines()[0].endswith(".")
    signature = inspect.signature(function)
    shown = function.__text_signature__
    # The schema's words for texts and small numbers.
    words = shown.replace('"', "'").replace("1e-5", "1e-05")
    assert str(_without_types(signature)) == words
    assert repr(function) == f"<function keyfold.{name}{shown}>"
    # Newer versions of CPython give each parameter of a long signature a line.
    page = "".join(pydoc.plain(pydoc.render_doc(function)).split()).replace(",)", ")")
    assert f"{name}{signature}".replace(" ", "") in page
    assert function.operators
    assert all(isinstance(op, kf.Operator) for op in function.operators)
    assert {name} <= set(kf.__all__) & set(dir(kf))


METHODS = [
    name for name in NAMES if hasattr(kf.Tensor, name) and name not in ("pow", "real", "imag")
]


def _read(value):
    """The default in a docstring, which ends with a full stop."""
    return ast.literal_eval(value.removesuffix("."))


@pytest.mark.parametrize("name", NAMES)
def test_a_function_and_its_method_tell_each_argument(name):
    function = getattr(kf, name)
    parameters = inspect.signature(function).parameters
    _, _, listed = function.__doc__.partition("\n\nArgs:\n    ")
    told = dict(line.split(": ", 1) for line in listed.partition("\n\n")[0].split("\n    "))
    assert list(told) == list(parameters)
    for argument, text in told.items():
        default = parameters[argument].default
        meaning, shown, value = text.partition(" Default: ")
        assert re.fullmatch(r".+[^.]\.", meaning), (argument, text)
        assert value == "" if not shown else _read(value) == default, (argument, text)
        assert bool(shown) == (default is not inspect.Parameter.empty)
    hints = typing.get_type_hints(function)
    assert list(hints) == [*parameters, "return"]
    assert {n: p.annotation for n, p in parameters.items()} | {"return": Any} == hints
    if name in METHODS:
        method = getattr(kf.Tensor, name)
        shown = str(_without_types(inspect.signature(function)))
        assert str(inspect.signature(method)) == shown.replace("x, /", "self, /")
        first = f"    x: {told['x']}\n"
        assert method.__doc__ == function.__doc__.replace(first, "")
        assert f"{name}(" in pydoc.plain(pydoc.render_doc(method))


def test_annotations_follow_from_the_schema():
    assert typing.get_type_hints(kf.add) == {"x1": Any, "x2": Any, "out": Any | None, "return": Any}
    hints = typing.get_type_hints(kf.sum)
    assert hints["axis"] == hints["dim"] == int | Sequence[int] | None
    assert hints["keepdims"] == bool | None
    assert typing.get_type_hints(kf.dropout)["p"] is float


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function_with_the_tensor_in_front(name):
    function, method = getattr(kf, name), getattr(kf.Tensor, name)
    x = X > 1 if name in ("all", "any") else X
    expected = function(x)
    assert getattr(x, name)().tolist() == method(x).tolist() == expected.tolist()
    out = kf.zeros(expected.shape, dtype=expected.dtype)
    assert getattr(x, name)(out=out) is out
    assert out.tolist() == expected.tolist()
    array = np.zeros(expected.shape, str(expected.dtype))
    assert getattr(x, name)(out=array) is array
    assert array.tolist() == expected.tolist()
    with pytest.raises(
        kf.BindingError, match=rf"^Tensor.{name}\(\) argument 'out' must be an array"
    ):
        getattr(x, name)(out=1)
    with pytest.raises(TypeError, match="doesn't apply to"):
        method(1)


def test_a_bound_method_reads_no_elements():
    x = kf.asarray([3.0, 1.0])
    for method in (x.sum, x.exp):
        name = method.__name__
        assert repr(method) == f"<built-in method {name} of keyfold.Tensor object at {id(x):#x}>"
        assert method.__qualname__ == f"Tensor.{name}"
        assert method.__self__ is x
        assert method.__doc__ == getattr(kf.Tensor, name).__doc__
        assert inspect.isroutine(method)
        assert pickle.loads(pickle.dumps(method))().tolist() == method().tolist()
    assert x.sum == x.sum != kf.asarray([3.0, 1.0]).sum
    assert list(inspect.signature(x.exp).parameters) == ["out"]
    assert pickle.loads(pickle.dumps(kf.Tensor.sum)) is kf.Tensor.sum
    assert repr(kf.Tensor.sum) == "<method 'sum' of 'keyfold.Tensor' objects>"


def test_a_reduction_of_all_elements_calls_its_overload():
    def called(function, *args, **kwargs):
        graph = kf.trace(lambda x: function(x, *args, **kwargs), X)
        return [node.operator for node in graph.nodes]

    for name in ("sum", "mean"):
        whole, along = f"aten::{name}", f"aten::{name}.dim"
        for function in (getattr(kf, name), getattr(kf.Tensor, name)):
            assert called(function) == called(function, None) == [whole]
            assert called(function, keepdim=0, out=None) == [whole]
            assert called(function, dtype="float32") == [whole]
            assert called(function, 0) == called(function, keepdims=True) == [along]
            assert (
                function(X, dtype="float32").dtype
                == function(X, 0, dtype="float32").dtype
                == "float32"
            )


def test_0_and_1_stand_for_bools():
    for one in (1, True, np.True_):
        assert kf.asarray(X, copy=one).data_ptr() != X.data_ptr()
        assert kf.from_dlpack(X, copy=one).data_ptr() != X.data_ptr()
        assert kf.reshape(X, 4, copy=one).data_ptr() != X.data_ptr()
        assert kf.astype(X, "float64", copy=one).data_ptr() != X.data_ptr()
        assert X.to(copy=one) is not X
        assert kf.sum(X, keepdims=one).shape == X.max(keepdim=one).shape == (1, 1)
    for zero in (0, False, np.False_):
        assert kf.asarray(X, copy=zero).data_ptr() == X.data_ptr()
        assert kf.from_dlpack(X, copy=zero).data_ptr() == X.data_ptr()
        assert kf.reshape(X, 4, copy=zero).data_ptr() == X.data_ptr()
        assert kf.astype(X, "float64", copy=zero) is X.to(copy=zero) is X
        assert kf.dropout(X, train=zero).tolist() == X.tolist()
    for function in (kf.asarray, lambda x, copy: kf.reshape(x, 4, copy=copy), kf.from_dlpack, X.to):
        with pytest.raises(TypeError):
            function(X, copy=2)
    for wrong in (2, None):
        with pytest.raises(kf.BindingError, match=r"dropout\(\) argument 'train' must be True or"):
            kf.dropout(X, train=wrong)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_a_function_is_copied_and_pickled_by_reference(again):
    assert again(kf.add) is kf.add


def test_the_page_of_operators_names_functions_that_there_are():
    named = re.findall(r"\| `keyfold\.(\w+)` \|", PAGE.read_text())
    assert set(NAMES) <= set(named) <= set(kf.__all__)


def test_a_function_in_a_class_is_no_method():
    class Layer:
        activation = kf.relu

    assert Layer().activation(X) is not None
    assert Layer.activation is kf.relu


def test_engine_functions_take_a_function_and_its_arguments():
    assert kf.explain(kf.add, X, 1).operator.name == "aten::add.Scalar"
    assert kf.explain(kf.subtract, 1, X).operator.name == "aten::rsub.Scalar"
    assert kf.explain(kf.where, X > 1, 0, X).operator.name == "aten::where.ScalarSelf"
    assert kf.explain(kf.sum, X, dim=0, out=kf.zeros(2)).operator.name == "aten::sum.dim_out"
    assert kf.infer_meta(kf.sum, X, axis=0, keepdims=True).shape == (1, 2)
    assert kf.call_direct(kf.exp, "CPU", X).tolist() == kf.exp(X).tolist()


CPU = kf.DispatchKeySet("CPU")


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "operator"),
    [
        (kf.exp, (X,), {}, "aten::exp"),
        (kf.sum, (X,), {"axis": 0, "keepdims": True}, "aten::sum.dim"),
        (kf.add, (X, X), {}, "aten::add"),
        (kf.add, (X, 1.5), {}, "aten::add.Scalar"),
        (kf.subtract, (1.5, X), {}, "aten::rsub.Scalar"),
        (kf.where, (X > 1, 0.5, X), {}, "aten::where.ScalarSelf"),
    ],
)
def test_a_function_stands_for_the_operator_that_its_arguments_choose(
    function, args, kwargs, operator
):
    expected = function(*args, **kwargs).tolist()
    assert kf.redispatch(function, CPU, *args, **kwargs).tolist() == expected
    assert _default.call(function, *args, **kwargs).tolist() == expected
    assert _default.redispatch(function, CPU, *args, **kwargs).tolist() == expected
    report = kf.opcheck(function, args, kwargs, tests=["schema", "meta"])
    assert report == {"schema": "passed", "meta": "passed"}
    assert report.operator == operator


def test_engine_functions_refuse_arguments_that_the_function_refuses(raises_saying):
    with raises_saying(kf.BindingError, "keyfold.sum() missing 1 required positional argument"):
        kf.opcheck(kf.sum, ())
    with raises_saying(kf.BindingError, "keyfold.exp() takes 1 positional argument but 2 were"):
        kf.redispatch(kf.exp, CPU, X, X)


def test_a_function_of_one_operator_stands_for_it():
    assert kf.get_op(kf.max).name == "aten::amax"
    assert kf.get_kernel(kf.exp, "CPU")(X).tolist() == kf.exp(X).tolist()
    library = kf.Library("aten")
    library.impl(kf.exp, lambda x: kf.zeros(x.shape), "Profiler")
    assert kf.call_direct(kf.exp, "Profiler", X).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    library.close()
    assert not kf.get_op(kf.exp).has_kernel("Profiler")


def test_a_function_of_several_operators_is_refused_where_no_arguments_choose(raises_saying):
    message = "keyfold.add stands for several operators, by its arguments: aten::add, "
    for call in (
        lambda: kf.get_op(kf.add),
        lambda: kf.get_kernel(kf.add, "CPU"),
        lambda: kf.impl(kf.add, "CPU", lambda x, y: x),
        lambda: kf.register_fake(kf.add, lambda x, y: x),
        lambda: kf.register_vmap(kf.add, lambda info, dims, x, y: x),
        lambda: kf.register_autograd(kf.add, lambda ctx, grad: grad),
        lambda: kf.register_jvp(kf.add, lambda inputs, tangents, output: None),
        lambda: kf.register_autocast(kf.add, "lower"),
    ):
        with raises_saying(kf.BindingError, message + "aten::add.Scalar; give the name of one"):
            call()
    with raises_saying(kf.BindingError, "keyfold.sum stands for several", "aten::sum.dim; give"):
        kf.get_op(kf.sum)


def test_arguments_go_where_the_operator_has_them():
    values = X.numpy()
    for call in (kf.sum, kf.mean, kf.max, kf.min):
        expected = getattr(np, call.__name__)(values, 0, keepdims=True)
        assert call(X, 0, keepdims=1).tolist() == expected.tolist()
        assert call(X, dim=0, keepdim=True).tolist() == expected.tolist()
    assert kf.sum(X, dtype="float32", axis=None).dtype == "float32"
    assert kf.expand_dims(X).shape == kf.expand_dims(X, dim=0).shape == (1, 2, 2)
    assert kf.permute_dims(X, axes=(1, 0)).tolist() == values.T.tolist()
    out = kf.zeros((2, 2))
    assert kf.subtract(1, X, out=out) is out
    assert out.tolist() == (1 - values).tolist()
    assert kf.less(2.5, X).tolist() == (values > 2.5).tolist()
    assert kf.add(X, np.float32(1)).tolist() == kf.add(True, X).tolist() == (values + 1).tolist()
    assert kf.dropout(X, train=False).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kf.exp(), "keyfold.exp() missing 1 required positional argument: 'x'"),
        (lambda: kf.add(X), "keyfold.add() missing 1 required positional argument: 'x2'"),
        (lambda: kf.exp(X, X), "keyfold.exp() takes 1 positional argument but 2 were given"),
        (lambda: kf.exp(x=X), "keyfold.exp() takes argument 'x' by position only"),
        (lambda: kf.exp(X, ouf=X), "unexpected keyword argument 'ouf'. Did you mean 'out'?"),
        (lambda: kf.sum(X, 0, axis=0), "keyfold.sum() got multiple values for argument 'axis'"),
        (lambda: kf.sum(X, axis="a"), "keyfold.sum() argument 'axis' must be a whole number"),
        (
            lambda: kf.subtract(1, "a"),
            "keyfold.subtract() argument 'x2' must be an array or a",
        ),
        (lambda: kf.stack(X), "keyfold.stack() argument 'arrays' must be a list of arrays"),
        (lambda: kf.exp(X, out=[1]), "keyfold.exp() argument 'out' must be an array, not list [1]"),
        (lambda: X.exp(X), "Tensor.exp() takes 1 positional argument but 2 were given"),
        (lambda: X.sum(0, 1), "Tensor.sum() takes from 1 to 2 positional arguments but 3 were"),
        (lambda: X.sum(x=X), "Tensor.sum() got an unexpected keyword argument 'x'"),
        (lambda: X.sum(self=X), "Tensor.sum() takes argument 'self' by position only"),
        (lambda: X.sum(0, axis=0), "Tensor.sum() got multiple values for argument 'axis'"),
        (lambda: X.sum("a"), "Tensor.sum() argument 'axis' must be a whole number, or several"),
        (lambda: X.sum(dtype=1), "Tensor.sum() argument 'dtype' must be a dtype"),
        (lambda: kf.clip(X, 1, out=1), "keyfold.clip() argument 'out' must be an array, not int 1"),
    ],
)
def test_a_call_that_cannot_be_is_refused_in_the_functions_words(call, message, raises_saying):
    with raises_saying(kf.BindingError, message):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: kf.clip(x, 10**30), "min"),
        (lambda x: kf.clip(x, 0, 10**30), "max"),
        (lambda x: kf.clip(x, max=-(10**30)), "max"),
    ],
)
def test_a_limit_that_no_dtype_holds_is_named(call, name, raises_saying):
    message = f"keyfold.clip() argument '{name}': the integer"
    with raises_saying(kf.InvalidValue, message, "doesn't fit into 64 bits"):
        call(kf.asarray([1, 2]))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax", "softmax", "expand_dims", "flip"])
def test_the_defaults_of_a_signature_can_be_given(name, raises_saying):
    x = np.arange(6.0).reshape(2, 3)
    function = getattr(kf, name)
    bound = inspect.signature(function).bind(x, **({"axis": 1} if name == "softmax" else {}))
    expected = function(*bound.args, **bound.kwargs)
    bound.apply_defaults()
    assert np.array_equal(function(*bound.args, **bound.kwargs), expected)
    with raises_saying(kf.BindingError, "got both 'axis' and 'dim'"):
        function(x, axis=0, dim=0)


def test_a_missing_argument_is_named_in_the_functions_words(raises_saying):
    with raises_saying(kf.BindingError, "keyfold.permute_dims()", "'axes'"):
        kf.permute_dims(np.ones((2, 3)))


def test_errors_without_a_caller_in_python_have_the_functions_words(monkeypatch):
    failures = []
    done = threading.Event()

    def note(failure):
        failures.append(str(failure.exc_value))
        done.set()

    monkeypatch.setattr(sys, "unraisablehook", note)
    _thread.start_new_thread(kf.sum, ("q",))
    assert done.wait(60)
    assert failures[0].startswith("keyfold.sum() argument 'x'")


def test_opcheck_takes_its_arguments_in_a_tuple(raises_saying):
    with raises_saying(kf.BindingError, "keyfold.opcheck()", "'args'", "(x,)"):
        kf.opcheck(kf.exp, np.ones(2))


def test_none_is_the_default_stride_and_training_is_train(raises_saying):
    x = kf.asarray(np.arange(64.0).reshape(1, 1, 8, 8))
    for pool in (kf.max_pool2d, kf.avg_pool2d):
        assert pool(x, 2, None).tolist() == pool(x, 2).tolist() == pool(x, 2, 2).tolist()
        assert pool(x, 3, stride=None).shape == (1, 1, 2, 2)
    assert kf.avg_pool1d(x[0], 4, None).shape == kf.max_pool1d(x[0], 4, None).shape == (1, 8, 2)
    with raises_saying(kf.BindingError, "'padding'", "a whole number", "None"):
        kf.max_pool2d(x, 2, None, None)
    assert kf.dropout(x, 0.5, training=False).tolist() == x.tolist()
    assert kf.dropout(x, 1.0, training=True).tolist() == (x * 0).tolist()
    with raises_saying(kf.BindingError, "'train'", "'training'"):
        kf.dropout(x, 0.5, train=True, training=False)
