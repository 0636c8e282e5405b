"""The functions that call one operator, which are made from the operators' rows."""

import copy
import inspect
import pickle
import pydoc
import re
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf
from keyfold._default import dispatcher as _default
from keyfold._ops import _operators

NAMES = _operators.__all__
X = kf.asarray([[1.0, 2.0], [3.0, 4.0]])
PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_function_says_what_it_is(name):
    function = getattr(kf, name)
    assert isinstance(function, kf.OperatorFunction)
    assert inspect.isroutine(function)
    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == "keyfold"
    assert function.__doc__.startswith("Return ")
    assert function.__doc__.splitlines()[0].endswith(".")
    shown = str(inspect.signature(function))
    assert function.__text_signature__ == shown
    assert repr(function) == f"<function keyfold.{name}{shown}>"
    assert f"{name}{shown}" in pydoc.plain(pydoc.render_doc(function))
    assert function.operators
    assert all(isinstance(op, kf.Operator) for op in function.operators)
    assert {name} <= set(kf.__all__) & set(dir(kf))


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
    assert kf.get_op(kf.sum).name == "aten::sum.dim"
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
    ],
)
def test_a_call_that_cannot_be_is_refused_in_the_functions_words(call, message, raises_saying):
    with raises_saying(kf.BindingError, message):
        call()
