"""The tree of errors: each can be raised, and is also what a person would catch."""

import builtins
import inspect
import re

import numpy as np
import pytest

import keyfold as kf
from keyfold._errors import BY_KIND
from tests.helpers.paths import ROOT


def registered(kernel, schema="ns::f(Tensor x) -> Tensor", key="CPU"):
    d = kf.Dispatcher()
    d.define(schema)
    d.impl("ns::f", key, kernel)
    return d


def use_after_removal():
    d = kf.Dispatcher()
    handle = d.define("f(Tensor x) -> Tensor")
    op = d.get_op("f")
    handle.remove()
    op(np.ones(1))


def endless():
    d = kf.Dispatcher()
    d.define("f(Tensor x) -> Tensor")
    op = d.get_op("f")
    d.impl("f", "CPU", op)
    op(np.ones(1))


def fails_in_c(c_library):
    kernel = kf.NativeKernel.from_library(c_library, "keyfold_example_fail")
    registered(kernel, "ns::f(Tensor x) -> float").call("ns::f", np.ones(1))


def out_of_order():
    first, second = kf.include_keys("Tracer"), kf.include_keys("Tracer")
    first.__enter__()
    second.__enter__()
    try:
        first.__exit__(None, None, None)
    finally:
        second.__exit__(None, None, None)


def write_read_only():
    x = np.ones(1)
    x.flags.writeable = False
    kf.ops.aten.fill_(x, 2.0)


def capsule_twice():
    capsule = np.ones(1).__dlpack__()
    kf.from_dlpack(capsule)
    kf.from_dlpack(capsule)


def mask_on_meta():
    meta = kf.ops.aten.empty([2], device="meta")
    kf.ops.aten.index(meta, [kf.ops.aten.eq(meta, 0)])


def without_a_pipeline():
    with kf.include_keys("Pipeline"):
        kf.ops.aten.neg(np.ones(1))


# Functions that raise each kind of the engine's errors, of no argument or of the C library.
RAISED_BY = {
    "Schema": lambda: kf.define("ns::f("),
    "Binding": lambda: kf.ops.aten.neg(),
    "Return": lambda: registered(lambda x: "no tensor").call("ns::f", np.ones(1)),
    "UnknownOperator": lambda: kf.get_op("aten::no_such_operator"),
    "UnknownKey": lambda: kf.DispatchKeySet("Nonsense"),
    "EmptyKeySet": lambda: kf.redispatch("aten::neg", kf.DispatchKeySet(), np.ones(1)),
    "MissingKernel": lambda: kf.redispatch("aten::neg", "CUDA", np.ones(1)),
    "Registration": lambda: registered(lambda: 1),
    "OperatorRemoved": use_after_removal,
    "Recursion": endless,
    "KernelPanic": lambda: kf.ops.keyfold_testing.panics(np.ones(1), np.ones(1)),
    "KernelFailed": fails_in_c,
    "Guard": out_of_order,
    "Device": lambda: kf.ops.aten.add(np.ones(1), kf.ops.aten.empty([1], device="meta")),
    "DType": lambda: kf.ops.aten.neg(np.array(["text"])),
    "Shape": lambda: kf.ops.aten.add(np.ones(2), np.ones(3)),
    "Value": lambda: kf.impl("aten::neg", "CUDA", lambda x: x, override="nonsense"),
    "Index": lambda: kf.ops.aten.transpose(np.ones((2, 2)), 0, 7),
    "ReadOnly": write_read_only,
    "Exchange": capsule_twice,
    "Memory": lambda: kf.ops.aten.empty([2**45]),
    "Library": lambda: kf.NativeKernel.from_library("no/such/library.so", "f"),
    "NotSupported": mask_on_meta,
    "Gradient": lambda: kf.ones(2).backward(),
    "Expression": lambda: kf.Expression("x +"),
    "Trace": lambda: kf.Graph.from_json("{}"),
    "Pipeline": without_a_pipeline,
}

# The builtin that a person would catch.
BUILTIN = {
    "Schema": ValueError,
    "Binding": TypeError,
    "Return": TypeError,
    "UnknownOperator": AttributeError,
    "UnknownKey": ValueError,
    "EmptyKeySet": ValueError,
    "MissingKernel": NotImplementedError,
    "Registration": ValueError,
    "OperatorRemoved": LookupError,
    "Recursion": RecursionError,
    "KernelPanic": RuntimeError,
    "KernelFailed": RuntimeError,
    "Guard": RuntimeError,
    "Device": ValueError,
    "DType": TypeError,
    "Shape": ValueError,
    "Value": ValueError,
    "Index": IndexError,
    "ReadOnly": ValueError,
    "Exchange": BufferError,
    "Memory": MemoryError,
    "Library": OSError,
    "NotSupported": NotImplementedError,
    "Gradient": RuntimeError,
    "Expression": ValueError,
    "Trace": ValueError,
    "Pipeline": RuntimeError,
}

# Classes that group others; nothing raises them themselves. CudnnError is for a later backend;
# OpCheckError, KernelLoadError and UnknownTensor are raised in Python alone
# (tests/tools/test_opcheck.py, tests/packaging/test_entry_points.py, tests/cudnn/test_plans.py).
GROUPS = {"Error", "DispatchError", "OpCheckError", "CudnnError"}
GROUPS |= {"KernelLoadError", "UnknownTensor"}


def test_the_table_is_complete():
    assert set(RAISED_BY) == set(BUILTIN) == set(BY_KIND)


def test_the_kinds_are_the_engines():
    """`Foreign` carries an exception of Python's own, which is raised again as it was."""
    source = (ROOT / "crates" / "core" / "src" / "error.rs").read_text()
    listed = source.split("pub const ALL", 1)[1].split("];", 1)[0]
    kinds = set(re.findall(r"ErrorKind::(\w+)", listed))
    assert kinds == set(BY_KIND) | {"Foreign"}


@pytest.mark.parametrize("kind", RAISED_BY)
def test_each_kind_is_raised(kind, c_library, testing):
    use = RAISED_BY[kind]
    with pytest.raises(kf.Error) as raised:
        use(c_library) if inspect.signature(use).parameters else use()
    assert type(raised.value) is BY_KIND[kind]
    assert isinstance(raised.value, BUILTIN[kind])
    assert len(str(raised.value)) > 10, "a message for a person"


@pytest.mark.parametrize("kind", RAISED_BY)
def test_each_class_is_documented(kind):
    assert BY_KIND[kind].__doc__.endswith(".")


def test_every_class_of_the_tree_is_raised_or_groups():
    tree = {
        value
        for value in vars(kf).values()
        if isinstance(value, type) and issubclass(value, kf.Error)
    }
    raised = set(BY_KIND.values())
    assert {cls.__name__ for cls in tree - raised} <= GROUPS
    assert raised <= tree, "all are reachable as keyfold.NAME"


def test_the_documented_names_exist():
    for name in ["DispatchError", "SchemaError", "DeviceError", "NotSupported", "OperatorRemoved"]:
        assert issubclass(getattr(kf, name), kf.Error)
    for name in ["PipelineError", "CudnnError"]:
        assert issubclass(getattr(kf, name), kf.Error)


def test_dispatch_errors_are_dispatch_errors():
    for kind in ["Schema", "Binding", "UnknownKey", "EmptyKeySet", "MissingKernel", "Recursion"]:
        assert issubclass(BY_KIND[kind], kf.DispatchError)


def test_no_class_has_two_builtin_parents_by_accident():
    """`except ValueError` must not catch what is no value error."""
    for kind, cls in BY_KIND.items():
        parents = [c for c in cls.__mro__ if c.__module__ == "builtins"]
        ours = set(BUILTIN[kind].__mro__) | {Exception}
        assert set(parents) <= ours, kind
        assert BUILTIN[kind] in vars(builtins).values()


def test_an_exception_in_python_stays_its_own():
    """The kind `Foreign`: not wrapped, not translated."""
    error = ZeroDivisionError("mine")

    def fails(x):
        raise error

    with pytest.raises(ZeroDivisionError) as raised:
        registered(fails).call("ns::f", np.ones(1))
    assert raised.value is error
