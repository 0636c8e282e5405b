"""`infer_schema`: what annotations, defaults and results become, and what errors say."""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

import keyfold as kf

if TYPE_CHECKING:
    import jax
    import torch

# Types for the annotations below.
NAMES = {**vars(typing), "Sequence": Sequence, "npt": npt, "typing": typing}


def infer(source, mutates_args=(), **names):
    """The schema of `def f(source)`, with annotations as objects."""
    scope = {**NAMES, **globals(), **names}
    code = compile(f"def f{source}: ...", __file__, "exec", dont_inherit=True)
    exec(code, scope)
    return kf.infer_schema(scope["f"], mutates_args=mutates_args)


class Array(Protocol):
    shape: tuple[int, ...]


class Exchanges:
    def __dlpack__(self): ...


class MaxResult(NamedTuple):
    values: kf.Tensor
    indices: np.ndarray


Either = TypeVar("Either", np.ndarray, kf.Tensor)
Bound = TypeVar("Bound", bound=np.ndarray)
Free = TypeVar("Free")
Axis = NewType("Axis", int)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("kf.Tensor", "Tensor"),
        ("np.ndarray", "Tensor"),
        ("np.ndarray[Any, np.dtype[np.float32]]", "Tensor"),
        ("npt.NDArray[np.float64]", "Tensor"),
        ("Array", "Tensor"),
        ("Exchanges", "Tensor"),
        ("Either", "Tensor"),
        ("Bound", "Tensor"),
        ("np.ndarray | kf.Tensor", "Tensor"),
        ("Annotated[kf.Tensor, 'on the CPU']", "Tensor"),
        ("Optional[kf.Tensor]", "Tensor?"),
        ("None | np.ndarray | kf.Tensor", "Tensor?"),
        ("int", "int"),
        ("float", "float"),
        ("bool", "bool"),
        ("complex", "complex"),
        ("str", "str"),
        ("Axis", "int"),
        ("Literal['sum', 'mean']", "str"),
        ("Literal[1, 2]", "int"),
        ("Literal['sum', None]", "str?"),
        ("int | float", "Scalar"),
        ("Union[int, float, bool]", "Scalar"),
        ("Union[int, float, None]", "Scalar?"),
        ("float | complex", "Scalar"),
        ("kf.DType", "ScalarType"),
        ("np.dtype", "ScalarType"),
        ("np.dtype[Any]", "ScalarType"),
        ("Any", "Any"),
        ("Any | None", "Any?"),
        ("kf.Device | None", "Device?"),
        ("list[int]", "int[]"),
        ("List[float]", "float[]"),
        ("Sequence[bool]", "bool[]"),
        ("typing.Sequence[str]", "str[]"),
        ("tuple[int, ...]", "int[]"),
        ("tuple[int, int]", "int[2]"),
        ("list[int | float]", "Scalar[]"),
        ("list[int] | None", "int[]?"),
        ("list[int] | tuple[int, ...]", "int[]"),
        ("Sequence[kf.Tensor]", "Tensor[]"),
        ("list[np.ndarray | None]", "Tensor?[]"),
        ("list[kf.Tensor] | None", "Tensor[]?"),
    ],
)
def test_a_parameters_annotation(annotation, expected):
    assert infer(f"(x: {annotation}) -> None") == f"({expected} x) -> ()"
    # The same as a text, as `from __future__ import annotations` makes it.
    assert infer(f"(x: {annotation!r}) -> None") == f"({expected} x) -> ()"
    kf.Dispatcher().define(f"a::b({expected} x) -> ()")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("None", "()"),
        ("tuple[()]", "()"),
        ("kf.Tensor", "Tensor"),
        ("int", "int"),
        ("int | float", "Scalar"),
        ("list[np.ndarray]", "Tensor[]"),
        ("tuple[kf.Tensor, ...]", "Tensor[]"),
        ("tuple[kf.Tensor, float]", "(Tensor, float)"),
        ("tuple[kf.Tensor, list[kf.Tensor]]", "(Tensor, Tensor[])"),
        ("MaxResult", "(Tensor values, Tensor indices)"),
    ],
)
def test_a_results_annotation(annotation, expected):
    assert infer(f"(x: int) -> {annotation}") == f"(int x) -> {expected}"
    assert infer(f"(x: int) -> {annotation!r}") == f"(int x) -> {expected}"
    kf.Dispatcher().define(f"a::b(int x) -> {expected}")


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("float = 2", "float x=2"),
        ("float = float('inf')", "float x=inf"),
        ("float = float('nan')", "float x=nan"),
        ("float = np.float32(0.5)", "float x=0.5"),
        ("int = -3", "int x=-3"),
        ("bool = True", "bool x=True"),
        ("int | float = 1.5", "Scalar x=1.5"),
        ("complex = 2 + 0j", "complex x=2.0"),
        ("str = 'a\"\\\\\\n'", 'str x="a\\"\\\\\\n"'),
        ("kf.Tensor | None = None", "Tensor? x=None"),
        ("list[int] = [1, 2]", "int[] x=[1, 2]"),
        ("Sequence[int] = ()", "int[] x=[]"),
        ("tuple[int, int] = (1, 2)", "int[2] x=[1, 2]"),
        ("kf.DType = kf.float32", "ScalarType x=float32"),
        ("kf.DType = np.float32", "ScalarType x=float32"),
        ("kf.DType = 'bfloat16'", "ScalarType x=bfloat16"),
        ("kf.Device = kf.Device('meta')", 'Device x="meta:0"'),
        ("kf.Device | None = 'cpu'", 'Device? x="cpu"'),
    ],
)
def test_a_default(parameter, expected):
    found = infer(f"(x: {parameter}) -> None")
    if "Device('meta')" in parameter:
        expected = f'Device x="{kf.Device("meta")}"'
    assert found == f"({expected}) -> ()"
    kf.Dispatcher().define(f"a::b{found}")


def test_keyword_only_parameters_follow_a_star():
    found = infer("(x: kf.Tensor, /, k: int, *, a: float = 1.0, b: bool) -> kf.Tensor")
    assert found == "(Tensor x, int k, *, float a=1.0, bool b) -> Tensor"


def test_the_name_goes_in_front():
    def f(x: kf.Tensor) -> kf.Tensor: ...

    assert kf.infer_schema(f, mutates_args=(), op_name="a::f") == "a::f(Tensor x) -> Tensor"


def test_written_arguments_are_marked():
    source = "(x: kf.Tensor, y: kf.Tensor | None, z: list[kf.Tensor], k: int) -> None"
    assert infer(source, ["y"]) == "(Tensor x, Tensor(a!)? y, Tensor[] z, int k) -> ()"
    assert infer(source, {"x", "z"}) == "(Tensor(a!) x, Tensor? y, Tensor(b!)[] z, int k) -> ()"
    unknown = "(Tensor(a!) x, Tensor(b!)? y, Tensor(c!)[] z, int k) -> ()"
    assert infer(source, "unknown") == unknown
    kf.Dispatcher().define(f"a::b{unknown}")


def test_there_are_marks_for_more_arguments_than_letters():
    names = ", ".join(f"x{i}: kf.Tensor" for i in range(30))
    found = infer(f"({names}) -> None", "unknown")
    assert "Tensor(z!) x25, Tensor(a26!) x26" in found
    kf.Dispatcher().define(f"a::b{found}")


def test_texts_name_what_is_imported_for_type_checkers_alone():
    def f(x: torch.Tensor, y: jax.Array | None, z: list[torch.Tensor]) -> list[torch.Tensor]: ...

    assert "torch" not in globals()
    found = kf.infer_schema(f, mutates_args=())
    assert found == "(Tensor x, Tensor? y, Tensor[] z) -> Tensor[]"


def test_texts_name_types_of_the_standard_library_that_are_not_imported():
    scope = {}
    exec("def f(x: 'Sequence[Tensor]', y: 'Optional[int]' = None) -> 'NDArray': ...", scope)
    assert kf.infer_schema(scope["f"], mutates_args=()) == "(Tensor[] x, int? y=None) -> Tensor"


def test_texts_see_the_function_around():
    Local = np.ndarray

    def f(x: Local) -> Local:
        return Local(x)

    assert kf.infer_schema(f, mutates_args=()) == "(Tensor x) -> Tensor"


def test_texts_inside_objects_are_read():
    assert infer("(x: Optional['kf.Tensor'], y: list['int']) -> Optional['Array']") == (
        "(Tensor? x, int[] y) -> Tensor?"
    )


def test_decorated_partial_and_bound_functions_are_read():
    def f(x: kf.Tensor, k: float, *, b: bool = False) -> kf.Tensor: ...

    @functools.wraps(f)
    def wrapped(*args, **kwargs): ...

    class Holder:
        def method(self, x: kf.Tensor) -> kf.Tensor: ...

        def __call__(self, x: np.ndarray) -> None: ...

    def schema(function):
        return kf.infer_schema(function, mutates_args=())

    assert schema(wrapped) == "(Tensor x, float k, *, bool b=False) -> Tensor"
    assert schema(functools.partial(f, k=1.0)) == (
        "(Tensor x, *, float k=1.0, bool b=False) -> Tensor"
    )
    assert schema(Holder().method) == "(Tensor x) -> Tensor"
    assert schema(Holder()) == "(Tensor x) -> ()"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        (
            "torch",
            "(x: torch.Tensor, p: torch.nn.Parameter, d: torch.dtype = torch.float32, "
            "e: torch.device = torch.device('cpu'), n: torch.types.Number = 1) -> torch.Tensor",
            '(Tensor x, Tensor p, ScalarType d=float32, Device e="cpu", Scalar n=1) -> Tensor',
        ),
        ("jax", "(x: jax.Array) -> jax.Array", "(Tensor x) -> Tensor"),
    ],
)
def test_other_libraries_classes_are_arrays(module, source, expected):
    library = pytest.importorskip(module, reason=f"{module} isn't installed")
    assert infer(source, **{module: library}) == expected


def test_no_array_library_is_imported():
    names = {"torch", "jax", "cupy"}
    before = names & set(sys.modules)
    infer("(x: 'torch.Tensor', y: 'jax.Array', z: 'cupy.ndarray') -> 'torch.Tensor'")
    assert names & set(sys.modules) == before


@pytest.mark.parametrize(
    ("source", "mutates_args", "says"),
    [
        ("(x) -> None", (), "parameter 'x' has no annotation, such as x: numpy.ndarray"),
        ("(x: dict[str, int]) -> None", (), "parameter 'x' is annotated dict[str, int], for which"),
        ("(x: list) -> None", (), "parameter 'x' is annotated list"),
        ("(x: list[list[int]]) -> None", (), "list[list[int]]"),
        ("(x: list[int | None]) -> None", (), "list[int | None]"),
        ("(x: tuple[int, str]) -> None", (), "tuple[int, str]"),
        ("(x: int | str) -> None", (), "int | str"),
        ("(x: kf.Tensor | int) -> None", (), "Tensor | int"),
        ("(x: Free) -> None", (), "~Free"),
        ("(x: None) -> None", (), "parameter 'x' is annotated None"),
        ("(x: 'nowhere.Thing') -> None", (), "annotated nowhere.Thing (not imported), for which"),
        ("(x: 'list[') -> None", (), "annotated 'list[', which can't be read (SyntaxError"),
        ("(x: 'np.nothing') -> None", (), "can't be read (AttributeError"),
        ("(x: int)", (), "doesn't say what it returns: write -> None, or its type"),
        ("(x: int) -> dict", (), "returns dict, for which"),
        ("(x: int) -> tuple[kf.Tensor]", (), "one result is returned as it is, not in a tuple"),
        ("(x: int) -> tuple[kf.Tensor, dict]", (), "returns tuple[keyfold.Tensor, dict]"),
        ("(*xs: kf.Tensor) -> None", (), "takes *xs, and a schema has a fixed number"),
        ("(**more: int) -> None", (), "takes **more"),
        ("(x: int = None) -> None", (), "annotated int and its default is None; annotate it int |"),
        ("(x: int = 1.5) -> None", (), "type int in the schema, which can't have the default 1.5"),
        ("(x: int = 2**63) -> None", (), "can't have the default 9223372036854775808"),
        ("(x: bool = 1) -> None", (), "can't have the default 1"),
        ("(x: float = True) -> None", (), "can't have the default True"),
        ("(x: complex = 1j) -> None", (), "can't have the default 1j"),
        ("(x: kf.Tensor = 3) -> None", (), "can't have the default 3"),
        ("(x: kf.DType = 'nothing') -> None", (), "can't have the default 'nothing'"),
        ("(x: tuple[int, int] = (1,)) -> None", (), "can't have the default (1,)"),
        ("(x: list[int] = [None]) -> None", (), "can't have the default [None]"),
        ("(x: kf.Tensor) -> None", "x", "has mutates_args='x': give names in a tuple, ('x',)"),
        (
            "(x: kf.Tensor) -> None",
            ["y"],
            "has no parameter 'y', which mutates_args names; it has x",
        ),
        ("(x: int) -> None", ["x"], "of type int, and mutates_args names it: only tensors"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(source, mutates_args, says):
    with pytest.raises(kf.SchemaError) as raised:
        infer(source, mutates_args)
    message = str(raised.value)
    assert message.startswith(f"infer_schema: f() ({__file__}:1) ")
    assert says in message


def test_an_unknown_annotation_gets_the_list_of_known_ones():
    with pytest.raises(kf.SchemaError) as raised:
        infer("(x: object) -> None")
    for known in ("numpy.ndarray", "int | float (Scalar)", "keyfold.DType", "list[X]", "schema="):
        assert known in str(raised.value)


def test_functions_that_return_before_they_compute_are_refused():
    async def later(x: int) -> int: ...

    def several(x: int) -> int:
        yield x

    for function, what in ((later, "a coroutine function"), (several, "a generator function")):
        with pytest.raises(kf.SchemaError, match=what):
            kf.infer_schema(function, mutates_args=())


def test_what_is_no_readable_function_is_refused():
    with pytest.raises(TypeError, match="infer_schema reads a function, not 3"):
        kf.infer_schema(3, mutates_args=())
    with pytest.raises(kf.SchemaError, match="has no signature that can be read"):
        kf.infer_schema(max, mutates_args=())


class StandIn:
    """`typing.TypeAliasType` for Pythons without it (before 3.12), by its looks."""

    def __init__(self, name, value):
        self.__name__, self.__value__ = name, value


StandIn.__name__ = "TypeAliasType"


def test_a_type_alias_is_what_it_stands_for():
    alias = getattr(typing, "TypeAliasType", StandIn)("Batch", list[np.ndarray])
    assert infer("(x: Batch) -> None", Batch=alias) == "(Tensor[] x) -> ()"


def test_the_module_typing_itself_can_be_named():
    assert infer("(x: typing.Optional[int]) -> None", typing=typing) == "(int? x) -> ()"
