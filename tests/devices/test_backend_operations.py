"""The backend of examples/backend.py under the operators and layers, and methods that fail."""

import gc
import weakref

import numpy as np
import pytest

import keyfold as kf

A = np.arange(12.0).reshape(3, 4) / 4 - 1


def on_device(x, dtype="float64"):
    return kf.asarray(x).to(dtype).to("npu:1")


CREATED = {
    "zeros": lambda d: kf.zeros((2, 3), device=d),
    "ones": lambda d: kf.ones((2, 3), dtype="int32", device=d),
    "full": lambda d: kf.full((2,), 3.5, device=d),
    "empty": lambda d: kf.empty((0, 3), device=d),
    "arange": lambda d: kf.arange(1, 10, 2, device=d),
    "arange of floats": lambda d: kf.arange(0.5, 3, 0.25, dtype="float32", device=d),
    "asarray": lambda d: kf.asarray([[1, 2], [3, 4]], device=d),
    "asarray of another dtype": lambda d: kf.asarray([1.5, 2.5], dtype="float32", device=d),
    "zeros_like": lambda d: kf.zeros_like(kf.ones((2, 2), device=d)),
    "ones_like": lambda d: kf.ones_like(kf.ones((2, 2), device=d)),
    "full_like": lambda d: kf.full_like(kf.ones((2, 2), device=d), 7.0),
    "empty_like": lambda d: kf.empty_like(kf.ones((0, 2), device=d)),
}


@pytest.mark.parametrize("make", CREATED.values(), ids=CREATED)
def test_tensors_are_made_on_the_device_that_is_named(npu_backend, make):
    for device in ("npu:1", "npu"):
        made, expected = make(device), make("cpu")
        assert made.device == (device if ":" in device else "npu:0")
        assert made.device.type == "npu"
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        assert made.cpu().tolist() == expected.tolist()


@pytest.mark.parametrize("make", CREATED.values(), ids=CREATED)
def test_nothing_is_made_on_an_index_that_is_not_there(npu_backend, make, raises_saying):
    with raises_saying(kf.DeviceError, "npu has 2 devices: npu:0, npu:1", "there is no npu:2"):
        make("npu:2")


GELU = kf.elementwise("npu_tests::gelu(Tensor x) -> Tensor", "0.5 * x * erfc(-x * 0.7071)")

OPERATORS = {
    "matmul": lambda x: x @ x.mT,
    "matrix by vector": lambda x: x @ x[0],
    "vector by matrix": lambda x: x[0] @ x.mT,
    "vector by vector": lambda x: x[0] @ x[1],
    "matrices by vector": lambda x: kf.stack([x, x * 2]) @ x[0],
    "sum": lambda x: x.sum(),
    "sum along": lambda x: x.sum(axis=0, keepdims=True),
    "mean": lambda x: x.mean(axis=1),
    "max": lambda x: x.max(axis=0),
    "min of all": lambda x: x.min(),
    "argmax": lambda x: x.argmax(axis=1),
    "argmin of all": lambda x: x.argmin(),
    "all": lambda x: x.all(axis=0),
    "any": lambda x: x.any(),
    "softmax": lambda x: x.softmax(),
    "log_softmax": lambda x: kf.log_softmax(x, axis=0),
    "cumulative_sum": lambda x: kf.cumulative_sum(x, axis=0),
    "cumulative_prod": lambda x: kf.cumulative_prod(x, axis=-1, include_initial=True),
    "views": lambda x: x.T[1:, ::2].reshape((-1,)),
    "stack": lambda x: kf.stack([x, x]),
    "concat": lambda x: kf.concat([x, x[:1]]),
    "add": lambda x: x + x,
    "scalars": lambda x: 3 - 2 * x / 4 + 1,
    "broadcast": lambda x: x * x[0],
    "compare": lambda x: (x < 0.5) & (x != 0),
    "where": lambda x: kf.where(x > 0, x, -x),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "exp and log": lambda x: (x.exp() + 1).log(),
    "erf": kf.erf,
    "an expression": lambda x: GELU(x),
    "pow": lambda x: x**2,
    "maximum": lambda x: kf.maximum(x, x[0]),
    "cast": lambda x: x.to("int32"),
    "floor_divide": lambda x: kf.floor_divide(x, 0.75),
    "0-dim of the CPU": lambda x: x + kf.asarray(2.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators_give_what_the_cpus_do(npu_backend, operator, dtype):
    expected = operator(kf.asarray(A).to(dtype))
    got = operator(on_device(A, dtype))
    assert got.device == "npu:1"
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    rtol = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got.cpu().numpy(), expected.numpy(), rtol=rtol, atol=rtol)


def loss(x):
    return ((x @ x.mT).tanh() * x.softmax().sum(axis=1)).mean()


def test_gradients_are_on_the_device_and_equal_the_cpus(npu_backend):
    x, there = kf.asarray(A).requires_grad_(), on_device(A).requires_grad_()
    loss(x).backward()
    loss(there).backward()
    assert there.grad.device == "npu:1"
    np.testing.assert_allclose(there.grad.cpu().numpy(), x.grad.numpy(), rtol=1e-12)
    # Across devices, too.
    (found,) = kf.grad((there.cpu() * 2).sum() + loss(there).cpu(), [there])
    assert found.device == "npu:1"
    np.testing.assert_allclose(found.cpu().numpy(), x.grad.numpy() + 2, rtol=1e-12)


def test_layers_work_over_it(npu_backend):
    x, there = kf.asarray(A), on_device(A)
    batched = kf.vmap(lambda row: (row * row).sum())
    assert batched(there).device == "npu:1"
    np.testing.assert_allclose(batched(there).tolist(), batched(x).tolist())
    graph = kf.trace(lambda x: x.sigmoid() + 1, there)
    np.testing.assert_allclose(graph(there).tolist(), (x.sigmoid() + 1).tolist())
    single = there.to("float32")
    with kf.autocast("float16"):
        product = single @ single.mT
    assert (product.dtype, product.device) == ("float16", "npu:1")
    with kf.profile() as profile:
        there.sum()
    assert [event["keys"] for event in profile.events] == ["NPU"]
    again = kf.checkpoint(loss, there.requires_grad_())
    again.backward()
    assert there.grad.device == "npu:1"


def test_writes_go_to_the_device(npu_backend):
    x = on_device(A)
    x[0] = 5.0
    x[1:, 0] = kf.asarray([7.0, 8.0])
    expected = A.copy()
    expected[0] = 5.0
    expected[1:, 0] = [7.0, 8.0]
    assert x.cpu().tolist() == expected.tolist()
    x += 1
    x.copy_(x * 2)
    assert x.cpu().tolist() == ((expected + 1) * 2).tolist()


def test_what_the_backend_lacks_is_an_error_that_names_it(npu_backend, raises_saying):
    for call in (
        lambda: kf.rand(3, device="npu"),
        lambda: on_device(A)[kf.asarray([0, 1]).to("npu:1")],
    ):
        with raises_saying(kf.NotSupported, "aten::", "'Npu'", ".to()"):
            call()


def test_random_numbers_never_come_from_another_device(npu_backend, raises_saying):
    kf.allow_fallback("npu", "cpu")
    try:
        state = kf.random.get_state("cpu")
        with raises_saying(kf.NotSupported, "aten::rand", "'Npu'", "group random"):
            kf.rand(3, device="npu:1")
        assert kf.random.get_state("cpu") == state
    finally:
        kf.allow_fallback("npu", None)


def test_permissions_that_lead_back_are_refused(npu_backend, raises_saying):
    kf.allow_fallback("npu", "cuda")
    with raises_saying(kf.DeviceError, "cuda can't fall back to npu", "come back to cuda"):
        kf.allow_fallback("cuda", "npu")
    kf.allow_fallback("npu", None)


def test_a_permission_ends_with_the_backend(npu_backend):
    kf.allow_fallback("npu", "cpu")
    npu_backend.remove()
    handle = kf.register_backend("npu", npu_backend.backend)
    try:
        with pytest.raises(kf.NotSupported):
            kf.zeros(3, device="npu")[kf.asarray([0]).to("npu")]
        assert not [ran for ran in kf.fallbacks() if ran.device_type == "npu"]
    finally:
        handle.remove()


def test_what_it_lacks_runs_elsewhere_where_that_was_allowed(npu_backend, raises_saying):
    before = {ran.op: ran.calls for ran in kf.fallbacks()}
    kf.allow_fallback("npu", "cpu")
    try:
        index = kf.asarray([2, 0]).to("npu:1")
        with pytest.warns(RuntimeWarning, match="aten::index.Tensor isn't offered by .* npu"):
            got = on_device(A)[index]
        assert (got.device, got.cpu().tolist()) == ("npu:1", A[[2, 0]].tolist())
        on_device(A)[index]
    finally:
        kf.allow_fallback("npu", None)
    after = {ran.op: ran for ran in kf.fallbacks()}["aten::index.Tensor"]
    assert after == kf.Fallback(
        "aten::index.Tensor", "npu", "cpu", before.get("aten::index.Tensor", 0) + 2
    )
    with raises_saying(kf.NotSupported, "'Npu'"):
        on_device(A)[index]
    for wrong in (("npu", "npu"), ("npu", "meta"), ("npu:1", "cpu"), ("nqu", "cpu")):
        with pytest.raises(kf.DeviceError):
            kf.allow_fallback(*wrong)


def multiply(a, b, out):
    np.matmul(a, b, out=out)


class Odd:
    """A backend whose methods are given."""

    name = "odd"

    def __init__(self, **methods):
        self.__dict__ |= methods


@pytest.fixture
def odd(npu):
    handles = []

    def register(**methods):
        handles.append(kf.register_backend("npu", Odd(**methods)))

    yield register
    for handle in handles:
        handle.remove()


def product(x=None):
    x = kf.ones((2, 2)).to("npu") if x is None else x
    return x @ x


def test_what_a_method_raises_is_the_error_of_the_call(odd):
    def matmul(a, b, out):
        raise OSError("out of tiles")

    odd(matmul=matmul)
    with pytest.raises(OSError, match="out of tiles") as caught:
        product()
    notes = "".join(caught.value.__notes__)
    assert "method 'matmul' of backend 'odd'" in notes


@pytest.mark.parametrize("result", [3, "done", np.ones((2, 2)), False])
def test_a_method_returns_none(odd, result, raises_saying):
    odd(matmul=lambda a, b, out: result)
    with raises_saying(kf.KernelReturnError, "'odd'", "'matmul'", type(result).__name__):
        product()


def test_not_implemented_is_an_operation_that_is_not_offered(odd, raises_saying):
    odd(matmul=lambda a, b, out: NotImplemented)
    with raises_saying(kf.NotSupported, "'odd'", "'matmul'", "NotImplemented"):
        product()


def test_inputs_cannot_be_written_and_nothing_beyond_the_output(odd):
    seen = []

    def matmul(a, b, out):
        seen.append((a.flags.writeable, b.flags.writeable, out.flags.writeable, out.shape))
        np.matmul(a, b, out=out)
        with pytest.raises(ValueError, match="read-only"):
            a[0, 0] = 3
        with pytest.raises(IndexError):
            out[2, 0] = 3

    odd(matmul=matmul)
    assert product().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert seen == [(False, False, True, (2, 2))]


def test_an_array_that_a_method_keeps_is_memory_of_its_own_life(odd):
    kept = []

    def matmul(a, b, out):
        np.matmul(a, b, out=out)
        kept.append(a)

    odd(matmul=matmul)
    x = kf.ones((2, 2)).to("npu")
    product(x)
    del x
    gc.collect()
    kf.zeros((2, 2)).to("npu")
    assert kept[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_supports_is_asked_by_dtype(odd, raises_saying):
    asked = []

    def supports(*question):
        asked.append(question)
        return question[2][0] == "float32" or "float32 alone"

    odd(matmul=multiply, supports=supports)
    single = kf.ones((2, 2), dtype="float32").to("npu")
    assert product(single).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    with raises_saying(kf.NotSupported, "'odd'", "float32 alone"):
        product()
    assert ("matmul", "matmul", ("float64", "float64"), "float64") in asked
    with raises_saying(kf.NotSupported, "'odd'", "NumPy", "bfloat16"):
        product(kf.ones((2, 2), dtype="bfloat16").to("npu"))


@pytest.mark.parametrize("answer", [None, 1, ValueError("which?")])
def test_what_supports_says_wrongly_is_told(odd, answer, raises_saying):
    def supports(*question):
        if isinstance(answer, Exception):
            raise answer
        return answer

    odd(matmul=lambda a, b, out: None, supports=supports)
    with raises_saying(kf.NotSupported, "'odd'", "'supports'"):
        product()


@pytest.mark.parametrize(
    "found",
    [
        3,
        [np.zeros(1, int)],
        (np.zeros(1), np.zeros(1)),
        (np.zeros(1, int), np.zeros(2, int)),
        ([0], [0]),
    ],
)
def test_positions_that_cannot_be(odd, found, raises_saying):
    odd(positions=lambda mask: found)
    x = kf.ones((2, 2)).to("npu")
    with raises_saying(kf.KernelReturnError, "'odd'", "'positions'"):
        kf.ops.aten.masked_select(x, kf.ones((2, 2), dtype="bool").to("npu"))


def test_a_removed_backend_is_freed(npu):
    backend = Odd(matmul=multiply)
    handle = kf.register_backend("npu", backend)
    x = kf.ones((2, 2)).to("npu")
    assert product(x).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    handle.remove()
    with pytest.raises(kf.MissingKernel, match="NPU"):
        product(x)
    gone = weakref.ref(backend)
    del backend, handle, x
    gc.collect()
    assert gone() is None


@pytest.fixture
def whole(npu_backend):
    """As the example's backend, with the groups that it leaves out."""
    npu_backend.remove()

    class Whole(type(npu_backend.backend)):
        def index(self, name, inputs, out, dims, at):
            x, *places = inputs
            places = tuple(places)
            rank = places[0].ndim
            group = range(at, at + rank)
            if name == "take":
                picked = np.moveaxis(x, dims, range(len(dims)))[places]
                out[...] = np.moveaxis(picked, range(rank), group)
            elif name == "gather":
                out[...] = np.take_along_axis(x, places[0], dims[0])
            elif name == "scatter_add":
                grid = list(np.indices(places[0].shape))
                grid[dims[0]] = places[0]
                np.add.at(out, tuple(grid), x)
            else:
                target = np.moveaxis(out, dims, range(len(dims)))
                values = np.moveaxis(x, group, range(rank))
                if name == "put":
                    target[places] = values
                else:
                    np.add.at(target, places, values)

        def positions(self, mask):
            return np.nonzero(mask)

        def random(self, name, seed, offset, out):
            kept = kf.random.get_state()
            kf.random.set_state(kf.random.RandomState("cpu", seed, offset))
            make = kf.rand if name == "uniform" else kf.randn
            out[...] = make(out.shape, dtype=out.dtype.name).numpy()
            kf.random.set_state(kept)

    handle = kf.register_backend("npu", Whole())
    yield handle
    handle.remove()


def put(x, index, values):
    x = x.clone()
    x[index] = values
    return x


ROWS = np.array([2, 0, 2])
PLACES = np.array([[0, 2, 1, 0]])
INDEXED = {
    "rows": lambda x, on: x[on(ROWS)],
    "a column": lambda x, on: x[:, on(ROWS)],
    "points": lambda x, on: x[on(ROWS), on(ROWS + 1)],
    "a mask": lambda x, on: x[x > 0],
    "put": lambda x, on: put(x, on(ROWS[:2]), 5.0),
    "gather": lambda x, on: kf.ops.aten.gather(x, 0, on(PLACES)),
    "scatter_add": lambda x, on: kf.ops.aten.scatter_add(x, 0, on(PLACES), x[:1]),
    "index_add": lambda x, on: kf.ops.aten.index_add(x, 0, on(ROWS), x),
}


@pytest.mark.parametrize("pick", INDEXED.values(), ids=INDEXED)
def test_indexing_gives_what_the_cpus_does(whole, pick):
    x, there = kf.asarray(A).requires_grad_(), on_device(A).requires_grad_()
    expected = pick(x, kf.asarray)
    got = pick(there, lambda index: kf.asarray(index).to("npu:1"))
    assert got.device == "npu:1"
    assert got.detach().cpu().tolist() == expected.detach().tolist()
    (expected * expected).sum().backward()
    (got * got).sum().backward()
    np.testing.assert_allclose(there.grad.cpu().numpy(), x.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("draw", [kf.rand, kf.randn], ids=["rand", "randn"])
def test_a_seed_gives_the_cpus_numbers_on_each_device(whole, draw, dtype):
    kf.manual_seed(11)
    expected = [draw(5, dtype=dtype).tolist() for _ in range(2)]
    for device in ("npu:0", "npu:1"):
        made = [draw(5, dtype=dtype, device=device) for _ in range(2)]
        assert [x.tolist() for x in made] == expected
        assert {str(x.device) for x in made} == {device}
    assert kf.random.get_state("npu:1")[1:] == kf.random.get_state("cpu")[1:]
    state = kf.random.get_state("npu:1")
    first = draw(3, device="npu:1").tolist()
    kf.random.set_state(state)
    assert draw(3, device="npu:1").tolist() == first


def test_a_checkpoint_draws_the_same_again_on_the_device(whole):
    x = kf.ones(1000, device="npu:1").requires_grad_()
    kf.manual_seed(2)
    (kept,) = kf.grad(kf.dropout(x, 0.5).sum(), [x])
    kf.manual_seed(2)
    result = kf.checkpoint(lambda x: kf.dropout(x, 0.5), x)
    kf.rand(10, device="npu:1")
    after = kf.random.get_state("npu:1")
    (again,) = kf.grad(result.sum(), [x])
    assert again.tolist() == kept.tolist()
    assert kf.random.get_state("npu:1") == after
