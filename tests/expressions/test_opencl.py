"""Expressions as OpenCL C on a device: pocl, from its wheel, computes on the CPU's threads."""

import math

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opencl import OPTIONS, QUICK, Device, launch, unusable
from tests.helpers.ulps import LONG, ulps

pytestmark = pytest.mark.one_python

pytest.importorskip("pyopencl", reason="pyopencl isn't installed")

COUNT = 61
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES = ["bool", *INTS, *FLOATS, "complex64", "complex128"]


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    if why := unusable():
        pytest.skip(why)
    device = Device(tmp_path_factory.mktemp("pocl"))
    yield device
    device.close()


@pytest.fixture(autouse=True)
def needs_device(device):
    assert device.name, "a device that computed a kernel is found again"


def numbers(dtype, seed=0, shape=(COUNT,), tame=False):
    """Numbers of a dtype, the odd ones among them; bfloat16 as float32."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if dtype.startswith("complex"):
        parts = rng.uniform(-3, 3, (2, count))
        return (parts[0] + 1j * parts[1]).astype(dtype).reshape(shape)
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        odd = np.array([0, 1, 2, info.max, info.min, info.max - 1], dtype=dtype)
        rest = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
        rest[::2] %= np.array(13, dtype=dtype)
    else:
        wide = "float32" if dtype == "bfloat16" else dtype
        info = np.finfo(wide)
        odd = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 3.5, np.inf, -np.inf, np.nan], dtype=wide)
        odd = np.concatenate([odd, np.array([info.smallest_subnormal * 5, info.max], dtype=wide)])
        rest = np.concatenate([rng.uniform(-4, 4, count), rng.uniform(-60, 60, count)])
        rest = rng.permutation(rest)[:count].astype(wide)
    if not tame:
        at = rng.permutation(count)[: len(odd)]
        rest[at] = odd[: len(at)]
    if dtype == "bfloat16":
        rest = (rest.view("uint32") & 0xFFFF0000).view("float32")
    return rest.reshape(shape)


def evaluate(text, inputs, params=()):
    """The CPU's result, as the device's comes."""
    expression = kf.Expression(text, inputs=list(inputs), params=[name for name, *_ in params])
    arrays = [kf.asarray(np.ascontiguousarray(a)).to(dtype) for a, dtype in inputs.values()]
    given = {name: number.item() for name, number, _ in params}
    result = expression(*arrays, **given)
    dtype = str(result.dtype)
    return np.asarray(result.to("float32") if dtype == "bfloat16" else result), dtype


def distance(got, expected):
    """The greatest distance in numbers of the dtype; 0 for equal bits and for two NaNs."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind == "c":
        info = np.finfo(got.dtype)
        finite = np.isfinite(got) & np.isfinite(expected)
        equal = (got == expected) | ~(np.isfinite(got) | np.isfinite(expected))
        if not (finite | equal).all():
            return math.inf
        # A quarter of each, since the modulus of finite parts may overflow.
        got, wanted = (np.where(finite, array, 0) / 4 for array in (got, expected))
        scale = np.maximum(info.eps * np.abs(wanted), info.smallest_subnormal)
        with np.errstate(over="ignore"):
            return float(np.max(np.abs(got - wanted) / scale))
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, expected) else math.inf
    signed = f"int{got.dtype.itemsize * 8}"

    def order(array):
        whole = array.view(signed).astype(object)
        return np.where(whole < 0, np.iinfo(signed).min - whole, whole)

    nan = np.isnan(got) & np.isnan(expected)
    zero = (got == 0) & (expected == 0) & (np.signbit(got) != np.signbit(expected))
    far = np.where(nan, 0, np.abs(order(got) - order(expected)))
    return math.inf if zero.any() else float(far.max(initial=0))


class Program:
    """Kernels of one program, and what each is to give."""

    def __init__(self):
        self.text, self.launches, self.wanted = "", [], []

    def add(self, text, inputs, *, allowed=0, out=None, params=(), **options):
        """A kernel for `inputs`: (array, dtype) by name; its result is compared with the CPU's."""
        expected, dtype = evaluate(text, inputs, params)
        if out is None:
            stored = "float32" if dtype == "bfloat16" else dtype
            out = np.ones(expected.shape, dtype=stored)
        name = f"kernel_{len(self.wanted)}"
        source, launches, target = launch(
            text, name, inputs, (out, dtype), params=params, **options
        )
        self.text += source
        self.wanted.append((text, inputs, len(launches), target, expected, allowed))
        self.launches += launches

    def run(self, device, options=QUICK):
        """Runs all and compares their results."""
        answers = iter(device.run(self.text, self.launches, options))
        wrong = []
        for text, inputs, parts, target, expected, allowed in self.wanted:
            answer = [next(answers) for _ in range(parts)][-1]
            error = distance(target.elements(answer[0]), expected)
            dtypes = [dtype for _, dtype in inputs.values()]
            if error > allowed:
                wrong.append(f"{text} of {dtypes}: {error}, at most {allowed}")
        assert not wrong


# OpenCL's limits in ulp for float32, section 7.4 of OpenCL C 1.2; float64's are the same except of
# `/` and `sqrt`, which are exact.
LIMITS = {
    "x / y": 2.5,
    "x ** y": 16,
    "exp": 3,
    "expm1": 3,
    "log": 3,
    "log1p": 2,
    "log2": 3,
    "log10": 3,
    "sqrt": 3,
    "rsqrt": 2,
    "sin": 4,
    "cos": 4,
    "tanh": 5,
    "erf": 16,
    "erfc": 16,
}
EXACT = ["-x", "abs(x)", "sign(x)", "floor(x)", "ceil(x)", "round(x)", "trunc(x)"]


def exactly(name, x, y):
    """A function in longdouble; of erf and erfc in float64."""
    with np.errstate(all="ignore"):
        if name in ("erf", "erfc"):
            values = [getattr(math, name)(v) for v in x.astype("float64")]
            return np.array(values, dtype=LONG)
        if name == "rsqrt":
            return LONG(1) / np.sqrt(x.astype(LONG))
        if "y" in name:
            function = np.divide if "/" in name else np.power
            return function(x.astype(LONG), y.astype(LONG))
        return getattr(np, name)(x.astype(LONG))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_are_within_the_limits_of_opencl(device, dtype):
    rng = np.random.default_rng(1)
    spread = np.concatenate([rng.uniform(-9, 9, 3000), rng.uniform(-90, 90, 1000)])
    x = np.concatenate([numbers(dtype), spread.astype(dtype)])
    y = rng.permutation(x)
    text, launches, targets = "", [], []
    for number, name in enumerate(LIMITS):
        inputs = {"x": (x, dtype), "y": (y, dtype)} if "y" in name else {"x": (x, dtype)}
        call = name if "y" in name else f"{name}(x)"
        out = (np.empty_like(x), dtype)
        source, one, target = launch(call, f"f_{number}", inputs, out, skew=0)
        text += source
        launches += one
        targets.append(target)
    answers = device.run(text, launches, QUICK)
    found = {}
    for (name, limit), target, answer in zip(LIMITS.items(), targets, answers, strict=True):
        got = target.elements(answer[0])
        found[name] = float(ulps(got, exactly(name, x, y)).max())
        # The reference of erf in float64 has an error of its own.
        slack = 1 if name.startswith("erf") and dtype == "float64" else 0
        assert found[name] <= limit + slack, (name, found[name])
    print(f"{device.name}, {dtype}:", {name: round(error, 2) for name, error in found.items()})


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_agree_with_the_cpu(device, dtype):
    program = Program()
    x, y = (numbers(dtype, 1), dtype), (numbers(dtype, 2), dtype)
    whole = dtype == "float32"
    for at, text in enumerate([*EXACT, "isnan(x)", "isfinite(x)"][:: 1 if whole else 3]):
        program.add(text, {"x": x}, skew=at % 2)
    pairs = ["minimum(x, y)", "maximum(x, y)", "x - y", "x * y", "x >= y", "x == y"]
    for at, text in enumerate(pairs[:: 1 if whole else 3]):
        program.add(text, {"x": x, "y": y}, skew=at % 2)
    for text in ["x + y", "where(x < y, x, -y)", "x % y"]:
        program.add(text, {"x": x, "y": y}, skew=0)
    program.add("x / y", {"x": x, "y": y}, allowed=3 if dtype == "float32" else 1)
    tame = (numbers(dtype, 3, tame=True), dtype)
    # In float32, of which a bfloat16 has the upper half.
    unit = {"float16": 1, "bfloat16": 1 << 16}.get(dtype)
    program.add("sigmoid(x)", {"x": tame}, allowed=unit or 10)
    program.add("abs(x) ** y", {"x": tame, "y": tame}, allowed=unit or 18)
    kind = np.float64 if dtype == "float64" else np.float32
    program.add(
        "softplus(beta * x) / beta",
        {"x": tame},
        params=[("beta", kind(1.75), float)],
        allowed=unit or 64,
    )
    program.run(device)


def test_optimized_code_rounds_as_the_cpu(device):
    program = Program()
    x, y = (numbers("float32", 1), "float32"), (numbers("float32", 2), "float32")
    # Devices with a fused multiply-add contract them where the text allows it; pocl 3.0 never does.
    program.add("x * x + y", {"x": x, "y": y}, skew=0)
    halves = {"x": (numbers("float16", 1), "float16"), "y": (numbers("float16", 2), "float16")}
    program.add("x * y - x", halves, skew=0)
    program.run(device, OPTIONS)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int16", "int32", "int64"])
def test_integers_agree_with_the_cpu(device, dtype):
    program = Program()
    x, y = (numbers(dtype, 1), dtype), (numbers(dtype, 2), dtype)
    for at, text in enumerate(["x + y", "x - y", "x * y", "x // y", "x % y", "minimum(x, y)"]):
        program.add(text, {"x": x, "y": y}, skew=at % 2)
    # Many functions in one kernel, for the compiler's time.
    program.add("(x & y | ~x ^ y) << y >> (x % 5)", {"x": x, "y": y}, skew=0)
    program.add("where(x < y, -x, abs(y)) + sign(x)", {"x": x, "y": y})
    exponent = (numbers(dtype, 3, tame=True) % np.array(7, dtype=dtype), dtype)
    program.add("x ** y", {"x": x, "y": exponent}, skew=0)
    program.run(device)


def test_bools_agree_with_the_cpu(device):
    program = Program()
    x, y = (numbers("bool", 1), "bool"), (numbers("bool", 2), "bool")
    for at, text in enumerate(["x & y", "x | ~y", "x ^ y", "x + y", "x * y", "x < y"]):
        program.add(text, {"x": x, "y": y}, skew=at % 2)
    # A bool among the kernel's parameters is a byte.
    program.add("x | beta", {"x": x}, params=[("beta", np.uint8(1), bool)])
    program.run(device)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_agree_with_the_cpu(device, dtype):
    program = Program()
    x, y = (numbers(dtype, 1), dtype), (numbers(dtype, 2), dtype)
    for at, text in enumerate(["x + y", "x - y", "-x", "conj(x)", "real(x)", "x == y"]):
        inputs = {"x": x, "y": y} if "y" in text else {"x": x}
        program.add(text, inputs, skew=at % 2)
    for text in ["x * y", "x / y", "x ** y"]:
        program.add(text, {"x": x, "y": y}, skew=0, allowed=64)
    names = ["abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sign"]
    for name in names[dtype == "complex128" :: 2]:
        program.add(f"{name}(x)", {"x": x}, skew=0, allowed=64)
    beta = (np.complex64 if dtype == "complex64" else np.complex128)(0.5 - 2j)
    program.add("x * beta", {"x": x}, params=[("beta", beta, complex)], allowed=4)
    program.run(device)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_functions_neither_overflow_nor_cancel(device, dtype):
    info = np.finfo(dtype)
    near = np.sqrt(info.eps)
    parts = [float(info.max) * 0.9, float(info.max) / 16, 1.0, near, 0.0, float(info.tiny) * 16]
    x = np.array([complex(re, im) for re in parts for im in parts], dtype=dtype)
    y = x[np.abs(x) > 0][::5].copy()
    program = Program()
    for text in ["log(x)", "real(log(x))", "sqrt(x)", "rsqrt(x)"]:
        given = x if text != "rsqrt(x)" else x[np.abs(x) > 0]
        program.add(text, {"x": (given, dtype)}, skew=0, allowed=64)
    for divisor in y:
        inputs = {"x": (y, dtype), "y": (np.full_like(y, divisor), dtype)}
        program.add("x / y", inputs, skew=0, allowed=64)
    program.run(device)


@pytest.mark.parametrize("dtype", DTYPES[::2])
def test_conversions_agree_with_the_cpu(device, dtype):
    program = Program()
    place = DTYPES.index(dtype)
    # Some of the pairs of dtypes; crates/kit/tests/emitted_kernels.rs has all.
    for at, to in enumerate(DTYPES[place % 3 :: 3]):
        if dtype.startswith("complex") and not to.startswith(("complex", "bool")):
            continue
        x = numbers(dtype, at, shape=(19,))
        program.add(f"{to}(x)", {"x": (x, dtype)}, skew=at % 2)
    program.run(device)


def test_views_are_walked_by_their_strides(device):
    program = Program()
    grid = np.arange(4 * 5 * 12, dtype="float32").reshape(4, 5, 12)
    x = grid[:, ::-1, ::3]
    row = np.arange(8, dtype="float32")[::-2]
    column = np.arange(5, dtype="float32")[:, None]
    text = "x * row + column - index + 10 * index(0) + index(1) * 100 + index(2) * 1000"
    inputs = {"x": (x, "float32"), "row": (row, "float32"), "column": (column, "float32")}
    out = np.ones((4, 10, 5), dtype="float32").transpose(2, 0, 1)[:, ::-1][::-1].transpose(1, 0, 2)
    out = out[:, :, ::-3][:, :, :4]
    program.add(text, inputs, out=out, layout="strided")
    program.add(text, inputs, out=out, layout="strided", parts=3, skew=0)
    # The result replaces a view.
    for skew in (0, 1):
        program.add("x * 2 - row", dict(list(inputs.items())[:2]), layout="strided", in_place="x")
        flat = {"x": (numbers("float64", skew), "float64")}
        program.add("x * x - index", flat, in_place="x", skew=skew)
    # Parts of a contiguous result, each by a launch of its own.
    flat = {"x": (numbers("int32", 5), "int32"), "y": (numbers("int32", 6), "int32")}
    program.add("x + y * index", flat, parts=3, skew=0)
    program.run(device)


def test_elements_are_read_at_indices_and_faults_are_reported(device):
    program = Program()
    x = (np.arange(20, dtype="float32").reshape(4, 5), "float32")
    table = np.arange(30, dtype="float32").reshape(5, 6)[::-1, 1::2]
    inputs = {"x": x, "table": (table, "float32")}
    program.add("table[index(0), index(1) % 3] * x", inputs, layout="strided")
    program.add("table[-1 - index(0), index % 3] + x", inputs)
    program.run(device)
    for text, given, code in [
        ("x + table[index(1), index(0)]", inputs, 3),
        ("x ** y", {"x": (np.arange(9), "int64"), "y": (-np.arange(9), "int64")}, 1),
    ]:
        with pytest.raises((kf.InvalidValue, kf.IndexOutOfRange)):
            evaluate(text, given)
        first, dtype = next(iter(given.values()))
        out = (np.ones(first.shape, dtype=dtype), dtype)
        source, launches, target = launch(text, "faulty", given, out)
        (answer,) = device.run(source, launches)
        assert answer[len(launches[0][1]) - 1].tolist() == [code]
        got = target.elements(answer[0])
        # Elements without a fault are right.
        if code == 1:
            assert got.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_a_kernel_says_whether_it_needs_float64():
    for text, dtype, needs in [
        ("exp(x) + 0.1", "float32", False),
        ("x * x", "float16", False),
        ("x + 1", "int64", False),
        ("x * 0.5", "int32", True),
        ("x", "complex128", True),
    ]:
        source = kf.Expression(text).opencl(dtype)
        assert ("cl_khr_fp64" in source) == needs, text
        assert ("double" in source) == needs, text
        assert "FP_CONTRACT OFF" in source
        assert "#include" not in source


def test_names_that_opencl_c_takes_are_refused(device):
    for name in ["kernel", "mix", "float4", "vload4", "half", "clamp"]:
        with pytest.raises(kf.InvalidValue, match=f'"{name}" can.t be the name of a kernel'):
            kf.Expression("x + 1").opencl("float32", name=name)
    # Names of inputs are free.
    x = (numbers("float32", tame=True), "float32")
    source, launches, target = launch(
        "kernel_ + float4", "names", {"kernel_": x, "float4": x}, (np.empty_like(x[0]), "float32")
    )
    (answer,) = device.run(source, launches)
    assert distance(target.elements(answer[0]), x[0] + x[0]) == 0


def test_more_parameters_than_every_device_takes_are_refused():
    names = [f"x{i}" for i in range(12)]
    with pytest.raises(kf.InvalidValue, match="no more than 1024"):
        kf.Expression(" + ".join(names)).opencl("float32", layout="strided")
