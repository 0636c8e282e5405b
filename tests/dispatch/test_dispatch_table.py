"""Tables over axes, from Python: filling, choosing, calling, looking inside."""

import copy
import enum
import itertools
import pickle
import random
import threading

import numpy as np
import pytest

import keyfold as kf


class Block(enum.Enum):
    SMALL = 128
    LARGE = 512


def make(name):
    def function(*args, **kwargs):
        return name

    function.__name__ = name
    return function


def small():
    return kf.DispatchTable(
        "small",
        device=["cpu", "cuda"],
        dtype=["float32", "float64", "int64"],
        contiguity=["contiguous", "strided"],
    )


@pytest.fixture
def table():
    """The CPU's floats, and one point on CUDA."""
    t = small()
    t.impl(device="cpu", dtype=["float32", "float64"])(make("floats"))
    t.impl(device="cuda", dtype="float32", contiguity="contiguous")(make("cuda"))
    return t


def test_coordinates_select_in_any_order(table):
    coords = {"device": "cpu", "dtype": "float64", "contiguity": "strided"}
    chosen = {table.select(**dict(order)) for order in itertools.permutations(coords.items())}
    assert {f.__name__ for f in chosen} == {"floats"}


def test_values_are_given_as_names_or_as_keyfolds_and_numpys_objects(table):
    for dtype in ("float32", "f32", kf.float32, np.float32, np.dtype("f4")):
        for device in ("cuda", "cuda:1", kf.Device("cuda:0")):
            found = table.select(dtype=dtype, device=device, contiguity="contiguous")
            assert found.__name__ == "cuda"
    other = kf.DispatchTable("other", dtype=[kf.float32, np.dtype("f8")], device=[kf.Device("cpu")])
    assert dict(other.axes) == {"dtype": ("float32", "float64"), "device": ("cpu",)}


def test_outside_the_coverage_names_table_coordinates_and_nearest(table):
    coords = {"contiguity": "strided", "dtype": "float64", "device": "cuda"}
    assert table.try_select(**coords) is None
    with pytest.raises(kf.MissingKernel) as caught:
        table.select(**coords)
    assert str(caught.value) == (
        "small: no kernel at device=cuda, dtype=float64, contiguity=strided; nearest covered, "
        "where 1 axis differs: device=cpu"
    )
    # A dtype that the table hasn't at all is outside the coverage, too.
    with pytest.raises(kf.MissingKernel) as caught:
        table.select(contiguity="strided", dtype="int8", device="cuda")
    assert str(caught.value) == (
        "small: no kernel at device=cuda, dtype=int8, contiguity=strided; nearest covered, where 2 "
        "axes differ: device=cpu, dtype=float32; device=cpu, dtype=float64; dtype=float32, "
        "contiguity=contiguous"
    )
    assert table.try_select(contiguity="strided", dtype="int8", device="cuda") is None
    with pytest.raises(kf.MissingKernel, match="the table covers nothing"):
        small().select(contiguity="strided", dtype="int64", device="cuda")


def test_many_nearest_points_are_counted():
    t = kf.DispatchTable("many", block=range(20), kind=["a", "b"])
    t.impl(kind="a")(make("a"))
    with pytest.raises(kf.MissingKernel) as caught:
        t.select(block=20, kind="a")
    assert str(caught.value).endswith(
        "1 axis differs: block=0; block=1; block=2; block=3; block=4; block=5; and 14 more"
    )


def test_what_does_not_exist_is_named_with_the_nearest(table):
    with pytest.raises(kf.InvalidValue) as caught:
        table.select(device="cpu", dtype="flot32", contiguity="strided")
    assert "the axis dtype has no value 'flot32'" in str(caught.value)
    assert "float32" in str(caught.value)
    with pytest.raises(kf.InvalidValue) as caught:
        table.try_select(device="cpu", dtype="float32", contiguity="contigous")
    assert str(caught.value) == (
        "small: the axis contiguity has no value 'contigous'; did you mean 'contiguous'? its "
        "values are contiguous, strided"
    )
    with pytest.raises(kf.InvalidValue, match="no axis 'dtyp'; did you mean 'dtype'"):
        table.select(dtyp="float32")
    with pytest.raises(kf.InvalidValue, match="no axis 'dtyp'; did you mean 'dtype'"):
        table.impl(dtyp="float32")
    with pytest.raises(kf.InvalidValue) as caught:
        table.impl(dtype="float16")
    assert str(caught.value) == (
        "small: the table's axis dtype has no value 'float16'; did you mean 'float64'? its values "
        "are float32, float64, int64"
    )
    with pytest.raises(kf.InvalidValue, match="the axis device has no value 'gpu'"):
        table.impl(device="gpu")
    with pytest.raises(kf.InvalidValue, match="must be hashable"):
        kf.DispatchTable("own", block=[1]).try_select(block={})


def test_a_missing_coordinate_is_named(table):
    with pytest.raises(kf.BindingError) as caught:
        table.select(dtype="float32", device="cpu")
    assert str(caught.value) == (
        "small: no value is given for the axis contiguity; its values are contiguous, strided"
    )


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "needs an axis"),
        ({"dtype": []}, "the axis dtype has no values"),
        ({"dtype": ["float32", "f4x"]}, "the axis dtype has no value 'f4x'"),
        ({"dtype": ["float32", "f32"]}, "has the value 'float32' twice"),
        ({"placement": ["inplace"]}, "did you mean 'in place'"),
        ({"block": [128, 128]}, "has the value 128 twice"),
    ],
)
def test_bad_axes_are_refused(axes, message):
    with pytest.raises(kf.InvalidValue, match=message):
        kf.DispatchTable("bad", **axes)


def test_empty_choice_and_what_is_no_function_are_refused(table):
    with pytest.raises(kf.InvalidValue, match="no values are given for the axis dtype"):
        table.impl(dtype=[])
    with pytest.raises(kf.BindingError, match="takes a function, not 3"):
        table.impl(dtype="int64")(3)


def test_the_function_that_pins_more_axes_wins_in_any_order():
    parts = [
        ("all", {}),
        ("cpu", {"device": "cpu"}),
        ("floats", {"device": "cpu", "dtype": ["float32", "float64"]}),
        ("f32", {"dtype": "float32", "device": "cpu"}),
    ]
    for order in itertools.permutations(parts):
        t = small()
        for name, coords in order:
            t.impl(**coords)(make(name))
        assert len(t) == t.size == 12
        found = {
            dtype: t.select(device="cpu", dtype=dtype, contiguity="strided").__name__
            for dtype in ("float32", "float64", "int64")
        }
        assert found == {"float32": "f32", "float64": "floats", "int64": "cpu"}
        assert t.select(device="cuda", dtype="float32", contiguity="strided").__name__ == "all"


def test_a_tie_names_both_and_the_point_and_registers_nothing(table):
    before = list(table.items())
    with pytest.raises(kf.RegistrationError) as caught:
        table.impl(contiguity="strided", dtype=["int64", "float32"])(make("layout"))
    assert str(caught.value) == (
        "small: the functions floats and layout pin equally many axes at device=cpu, "
        "dtype=float32, contiguity=strided; cover it by one of them, or first by a third that pins "
        "more"
    )
    assert list(table.items()) == before
    # A third that pins more settles it.
    table.impl(contiguity="strided", dtype="float32", device="cpu")(make("both"))
    with pytest.raises(kf.RegistrationError, match="dtype=float64"):
        table.impl(contiguity="strided", dtype=["float64", "float32"])(make("layout"))
    # The same function again is no tie.
    function = table.select(device="cpu", dtype="float64", contiguity="strided")
    table.impl(device="cpu", dtype="float64")(function)


def test_with_gives_a_copy_and_leaves_the_original_as_it_was(table):
    more = table.with_(make("ints"), dtype="int64", device="cpu")
    assert (len(table), len(more)) == (5, 7)
    point = {"device": "cpu", "dtype": "int64", "contiguity": "strided"}
    assert table.try_select(**point) is None
    assert more.select(**point).__name__ == "ints"
    other = table.copy()
    other.impl(dtype="int64")(make("other"))
    assert (len(table), len(other)) == (5, 9)


def test_points_iterate_count_and_go_there_and_back(table):
    assert table.size == 12
    points = [table.point(index) for index in range(table.size)]
    assert [table.index(**point) for point in points] == list(range(12))
    assert points[1] == {"device": "cpu", "dtype": "float32", "contiguity": "strided"}
    covered = [point for point in points if table.try_select(**point) is not None]
    assert list(table) == list(table.coverage) == covered
    assert len(covered) == len(table) == 5
    assert [point in table for point in points].count(True) == 5
    assert {f.__name__ for _, f in table.items()} == {"floats", "cuda"}
    with pytest.raises(kf.InvalidValue, match="no point has the number 12"):
        table.point(12)
    with pytest.raises(kf.InvalidValue, match="axis dtype has no value 'int8'"):
        table.index(device="cpu", dtype="int8", contiguity="strided")
    assert bool(small())
    assert len(small()) == 0


def test_own_axes_have_any_hashable_values():
    t = kf.DispatchTable("own", block=Block, size=(1, 2), mode={"fast", "exact"})
    t.impl(block=Block.SMALL, size=[1])(make("small"))
    assert t.select(size=1, block=Block.SMALL, mode="fast").__name__ == "small"
    assert t.try_select(size=1, block=Block.LARGE, mode="fast") is None
    assert len(t) == 2


def test_a_function_can_have_its_coordinates(table):
    @table.impl(dtype="int64", with_coords=True)
    def ints(coords, x):
        return dict(coords), x

    found = table.select(device="cpu", dtype="int64", contiguity="strided")
    assert found(3) == ({"device": "cpu", "dtype": "int64", "contiguity": "strided"}, 3)
    assert ints({}, 1) == ({}, 1)


def test_arrays_are_contiguous_together_only_if_each_is(table):
    x = np.zeros((2, 3), "f4")
    in_a_row = {"device": "cpu", "dtype": "float32", "contiguity": "contiguous"}
    assert table.coordinates(x, kf.from_numpy(x)) == in_a_row
    assert table.coordinates(x, x.T)["contiguity"] == "strided"
    assert table.coordinates(kf.from_numpy(x).T)["contiguity"] == "strided"
    assert kf.DispatchTable("d", dtype=["float32"]).coordinates(x) == {"dtype": "float32"}


def test_mixed_arrays_are_refused_by_their_places(table):
    x = np.zeros(3, "f4")
    with pytest.raises(kf.DTypeError) as caught:
        table.coordinates(x, x.astype("i8"))
    assert str(caught.value) == (
        "small: arguments of different dtypes: argument 0 is float32, argument 1 is int64; convert "
        "one of them"
    )
    meta = kf.empty(3, dtype="float32", device="meta")
    with pytest.raises(kf.DeviceError, match="argument 0 is on cpu, argument 1 on meta"):
        table.coordinates(x, meta)
    with pytest.raises(kf.MissingKernel, match="no kernel at device=meta"):
        table(meta)
    with pytest.raises(kf.BindingError, match="no arrays"):
        table.coordinates()
    with pytest.raises(kf.BindingError, match="argument 1 must be an array, not int"):
        table.coordinates(x, 3)
    with pytest.raises(kf.BindingError, match="no value is given for the axis device"):
        table(3)
    # Without an axis of dtypes they may be mixed.
    other = kf.DispatchTable("other", contiguity=["contiguous", "strided"])
    assert other.coordinates(x, x.astype("i8")) == {"contiguity": "contiguous"}


def test_a_call_selects_by_its_arrays_and_by_named_coordinates():
    t = kf.DispatchTable(
        "call", dtype=["float32", "float64"], placement=["in place", "out of place"]
    )

    @t.impl(placement="in place")
    def in_place(x, by, *, out=None):
        x *= by
        return x

    @t.impl(placement="out of place")
    def out_of_place(x, by, *, out=None):
        return x * by if out is None else np.multiply(x, by, out=out)

    x = np.ones(2)
    assert t(x, 3, placement="in place") is x
    assert x.tolist() == [3, 3]
    out = np.empty(2)
    assert t(x, 3, out=out, placement="out of place") is out
    assert out.tolist() == [9, 9]
    with pytest.raises(kf.DTypeError, match="argument 0 is float64, argument 'out' is float32"):
        t(x, 3, out=out.astype("f4"), placement="out of place")
    # Named coordinates come before those of the arrays.
    with pytest.raises(kf.MissingKernel, match="dtype=int8"):
        t(x, 3, dtype="int8", placement="in place")
    with pytest.raises(kf.BindingError, match="no value is given for the axis placement"):
        t(x, 3)


def test_the_table_is_shown_readably(table):
    assert repr(table).splitlines() == [
        "small: 5 of 12 points covered",
        "function  device  dtype             contiguity  points",
        "--------  ------  ----------------  ----------  ------",
        "floats    cpu     float32, float64  all         4",
        "cuda      cuda    float32           contiguous  1",
    ]
    assert repr(small()).splitlines()[0] == "small: 0 of 12 points covered"


def test_against_a_naive_model():
    rng = random.Random(7)
    axes = {"a": [0, 1, 2], "b": ["x", "y"], "c": [0.5, 1.5, 2.5, 3.5]}
    ties = 0
    for _ in range(200):
        t = kf.DispatchTable("model", **axes)
        registered = []
        for number in range(4):
            coords = {
                axis: rng.sample(values, rng.randint(1, len(values)))
                for axis, values in axes.items()
                if rng.random() < 0.6
            }
            single = sum(len(values) == 1 for values in coords.values())
            narrow = sum(1 < len(v) < len(axes[axis]) for axis, v in coords.items())
            pins = (single, narrow)

            def covers(point, coords=coords):
                return all(point[axis] in values for axis, values in coords.items())

            def best(point, registered=registered):
                return max((p for p, c, _ in registered if c(point)), default=None)

            points = [dict(zip(axes, p, strict=True)) for p in itertools.product(*axes.values())]
            function = make(f"f{number}")
            if any(covers(point) and best(point) == pins for point in points):
                ties += 1
                with pytest.raises(kf.RegistrationError):
                    t.impl(**coords)(function)
            else:
                t.impl(**coords)(function)
                registered.append((pins, covers, function))
        for point in points:
            covering = [(p, f) for p, c, f in registered if c(point)]
            expected = max(covering, key=lambda pair: pair[0])[1] if covering else None
            assert t.try_select(**point) is expected
    assert ties > 50


def test_readers_never_see_half_a_registration():
    t = kf.DispatchTable("threads", a=range(50), b=range(20))
    first = make("first")
    t.impl()(first)
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            slots = t._slots
            seen.add(len({id(slot) for slot in slots}))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(20):
            t.impl(b=number)(make(f"f{number}"))
    finally:
        stop.set()
        reader.join()
    assert max(seen) <= 21
    assert len(t) == 1000


def test_a_table_is_an_operators_kernel():
    d = kf.Dispatcher()
    d.define("t::f(Tensor x, float by=2.0) -> Tensor")
    t = kf.DispatchTable("f", dtype=["float32", "float64"], contiguity=["contiguous", "strided"])

    @t.impl()
    def f(x, by):
        return x * by

    d.impl("t::f", "CPU", t)
    x = np.arange(4.0)
    assert d.ops.t.f(x[::2]).tolist() == [0.0, 4.0]
    with pytest.raises(kf.MissingKernel, match="no kernel at dtype=int64"):
        d.ops.t.f(np.arange(4))


def in_a_row(x):
    return ("row", x)


def anywhere(coords, x):
    return (coords["dtype"], x)


def filled():
    table = kf.DispatchTable("t", dtype=["float32", "int64"], contiguity=["contiguous", "strided"])
    table.impl(with_coords=True)(anywhere)
    table.impl(contiguity="contiguous", dtype="int64")(in_a_row)
    return table


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_table_is_copied_and_pickled_with_its_functions(again):
    table = filled()
    other = again(table)
    assert repr(other) == repr(table)
    for point in table:
        assert other.select(**point)(1) == table.select(**point)(1)
    other.impl(dtype="float32", contiguity="strided")(in_a_row)
    assert table.select(dtype="float32", contiguity="strided")(1) == ("float32", 1)


def test_a_table_of_a_function_that_cannot_be_pickled_says_which():
    table = kf.DispatchTable("t", dtype=["float32"])
    table.impl()(lambda x: x)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(table)


def test_unhashable_values_are_refused_by_name():
    with pytest.raises(kf.InvalidValue, match=r"axis q must be hashable, not \[1\]"):
        kf.DispatchTable("t", q=[[1], [2]])
    with pytest.raises(kf.InvalidValue, match=r"axis contiguity must be hashable, not \['strided'"):
        kf.DispatchTable("t", contiguity=[["strided"]])
    table = kf.DispatchTable("t", q=[1, 2])
    for ask in (table.select, table.try_select, table.index):
        with pytest.raises(kf.InvalidValue, match=r"axis q must be hashable, not \[1\]"):
            ask(q=[1])


class Contrary:
    """A value that can be neither hashed nor compared, with an error of its own."""

    def __hash__(self):
        raise RuntimeError("no hash")

    def __eq__(self, other):
        raise RuntimeError("no comparison")


def test_whatever_is_asked_for_is_in_a_table_or_not():
    table = filled()
    inside = {"dtype": "int64", "contiguity": "strided"}
    assert inside in table
    outside = [
        {**inside, "dtype": "float64"},
        {**inside, "dtype": [1]},
        {**inside, "dtype": Contrary()},
        {**inside, "contiguity": Contrary()},
        {**inside, "contiguity": ["strided"]},
        {**inside, "more": 1},
        {"dtype": "int64"},
        {1: 2},
        {},
        None,
        3,
        [inside],
        Contrary(),
    ]
    for point in outside:
        assert point not in table
