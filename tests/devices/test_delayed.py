"""Everything over a device that works late, with hidden memory: it gives what the CPU gives."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import keyfold as kf
from keyfold.testing import delayed_device


@pytest.fixture(scope="module")
def late():
    """The device that the tests share, as long as they plant nothing."""
    with delayed_device("late") as device:
        yield device


@pytest.fixture
def device(late):
    """Its second device: an index that gets lost shows."""
    return late.devices[1]


def same(there, expected, device):
    """Compare bits, dtype, shape, and the device."""
    assert there.device == device
    expected = expected.detach() if isinstance(expected, kf.Tensor) else expected
    found, expected = there.detach().cpu().numpy(), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


MAKERS = {
    "zeros": lambda d: kf.zeros((2, 3), device=d),
    "ones": lambda d: kf.ones((2, 3), dtype=kf.int64, device=d),
    "full": lambda d: kf.full((2,), 7.5, device=d),
    "arange": lambda d: kf.arange(2, 9, 2, device=d),
    "asarray": lambda d: kf.asarray([[1, 2], [3, 4]], device=d),
    "zeros_like": lambda d: kf.zeros_like(kf.ones(3, device=d)),
    "ones_like": lambda d: kf.ones_like(kf.ones(3), device=d),
    "full_like": lambda d: kf.full_like(kf.ones(3, device=d), 4.0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_are_made_on_the_device(name, device):
    make = MAKERS[name]
    same(make(device), make("cpu"), device)
    same(make(str(device)), make("cpu"), device)
    assert make(device.type).device == f"{device.type}:0"


INDICES = {
    "number": lambda m: 1,
    "negative": lambda m: -1,
    "slice": lambda m: slice(None, None, 2),
    "backwards": lambda m: slice(None, None, -1),
    "ellipsis": lambda m: (..., 0),
    "axis": lambda m: (None, 1),
    "several": lambda m: (slice(0, 2), 1, slice(1, None)),
    "list": lambda m: [2, 0],
    "array": lambda m: np.array([[0, 1], [2, 2]]),
    "positions": lambda m: m([2, 0]),
    "two lists": lambda m: ([0, 1], slice(None), [1, 3]),
    "numpy mask": lambda m: np.array([True, False, True]),
    "mask": lambda m: m([True, False, True]),
    "wide mask": lambda m: m((np.arange(24).reshape(3, 2, 4) % 3 == 0).tolist()),
}


@pytest.mark.parametrize("name", INDICES)
def test_every_form_of_index_reads_and_writes(name, device):
    host = kf.asarray(np.arange(24.0).reshape(3, 2, 4))
    there = host.to(device)
    index, place = INDICES[name](kf.asarray), INDICES[name](lambda x: kf.asarray(x).to(device))
    same(there[place], host[index], device)
    there[place] = 5.5
    host[index] = 5.5
    same(there, host, device)
    there[place] = there[place] * 2
    host[index] = host[index] * 2
    same(there, host, device)
    there[place] += 1
    host[index] += 1
    same(there, host, device)


def test_a_tensor_shows_its_elements_and_its_device(device):
    host = kf.asarray([[1.5, -2.0], [0.0, 3.25]])
    there = host.to(device)
    assert f"device='{device}'" in repr(there)
    assert "[[ 1.5 , -2.  ]" in repr(there)
    assert there.tolist() == host.tolist()
    assert there[0, 1].item() == -2.0
    assert float(there[0, 0]) == 1.5
    assert bool((there == there).all())
    assert int(there.sum()) == 2
    assert [row.tolist() for row in there] == host.tolist()
    assert len(there) == 2


def test_pickles_and_copies_keep_the_device(device):
    there = kf.asarray([[1.0, 2.0], [3.0, 4.0]]).to(device)
    for other in [
        pickle.loads(pickle.dumps(there)),
        copy.deepcopy(there),
        pickle.loads(pickle.dumps(there.T)).T,
    ]:
        same(other, there.cpu(), device)
        other += 1
    assert there.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_nothing_comes_to_the_host_unasked(late, device, raises_saying):
    there = kf.asarray([1.0, 2.0, 3.0]).to(device)
    downloads = late.count("download")
    for read in [np.asarray, lambda x: x.numpy(), np.from_dlpack, memoryview]:
        with raises_saying((kf.Error, TypeError, BufferError, RuntimeError)):
            read(there)
    with raises_saying(kf.DeviceError, "cpu", str(device)):
        there + kf.ones(3)
    with raises_saying(kf.DeviceError, str(late.devices[0]), str(device)):
        there + kf.ones(3, device=late.devices[0])
    result = ((there + 1) * there).sum().to(late.devices[0]).to(device)
    assert late.count("download") == downloads
    assert result.cpu().item() == 20.0
    assert late.count("download") == downloads + 1


def network(device):
    """The weights of a small network and examples, on a device."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in [(6, 4), (4,), (4, 3), (5, 6)]]
    return [kf.asarray(array).to(device) for array in arrays]


def loss(first, bias, second, x):
    """A number that depends on all of them."""
    hidden = kf.gelu(x @ first + bias)
    return -kf.mean(kf.log_softmax(hidden @ second, axis=1)[:, 0])


def both(function, device):
    """The function's results on the CPU and on the device, flat."""
    flat = []
    for where in ("cpu", device):
        result = function(where)
        flat.append(list(result) if isinstance(result, (tuple, list)) else [result])
    assert len(flat[0]) == len(flat[1]) > 0
    for cpu, there in zip(*flat, strict=True):
        same(there, cpu, device)


def test_gradients_of_gradients_are_the_cpus(device):
    both(lambda d: kf.grad(loss, argnums=(0, 1, 2))(*network(d)), device)

    def slope(*tensors):
        return sum((g * g).sum() for g in kf.grad(loss, argnums=(0, 1, 2))(*tensors))

    both(lambda d: kf.grad(slope, argnums=(0, 2))(*network(d)), device)


def test_batches_of_gradients_are_the_cpus(device):
    each = kf.vmap(
        kf.grad(lambda w, b, v, x: loss(w, b, v, x[None])), in_axes=(None, None, None, 0)
    )
    both(lambda d: each(*network(d)), device)


def test_traces_replay_on_the_device(device):
    def replayed(where):
        tensors = network(where)
        graph = kf.trace(loss, *tensors)
        return graph(*[tensor * 2 for tensor in tensors])

    both(replayed, device)


def test_a_trace_knows_what_shares_memory_on_the_device(device):
    def f(x):
        y = x * 2
        row = y[1]
        row += 10
        y[:, 0] = x[:, 1]
        return y

    def replayed(where):
        x = kf.asarray([[1.0, 2.0], [3.0, 4.0]]).to(where)
        return kf.trace(f, x)(x + 1)

    both(replayed, device)


def test_autocast_and_the_profiler_work_on_the_device(device):
    def cast(where):
        with kf.profile() as profile, kf.autocast("bfloat16"):
            result = loss(*[kf.astype(tensor, kf.float32) for tensor in network(where)])
        assert "aten::matmul" in [event["name"] for event in profile.events]
        return result.detach()

    both(cast, device)


def test_operators_of_ones_own_run_on_the_device(device, ns):
    schema = f"{ns}::swish(Tensor x, float beta) -> Tensor"
    swish = kf.elementwise(schema, "x / (1 + exp(-beta * x))")
    both(lambda d: swish(network(d)[0], 1.5), device)
    both(lambda d: kf.grad(lambda x: swish(x, 1.5).sum())(network(d)[0]), device)

    @kf.custom_op(f"{ns}::twice", mutates_args=())
    def twice(x: kf.Tensor) -> kf.Tensor:
        return x + x

    both(lambda d: twice(network(d)[0]), device)


def test_random_numbers_are_those_of_the_devices_own_state(late, device):
    kf.manual_seed(7)
    cpu = [kf.rand(5), kf.randn(4), kf.dropout(kf.ones(9), 0.5)]
    there = [
        kf.rand(5, device=device),
        kf.randn(4, device=device),
        kf.dropout(kf.ones(9, device=device), 0.5),
    ]
    for expected, found in zip(cpu, there, strict=True):
        same(found, expected, device)
    state = kf.random.get_state(device)
    assert state.device == str(device)
    assert state[1:] == kf.random.get_state("cpu")[1:]
    first = kf.rand(3, device=device).tolist()
    kf.random.set_state(state)
    assert kf.rand(3, device=device).tolist() == first
    assert kf.random.get_state(late.devices[0]).offset == 0


def test_checkpoint_draws_the_same_numbers_again(device):
    def f(x):
        return (kf.dropout(x, 0.5) * x).sum()

    kf.manual_seed(3)
    x = kf.ones(64, device=device).requires_grad_()
    kf.checkpoint(f, x).backward()
    kf.manual_seed(3)
    y = kf.ones(64, device=device).requires_grad_()
    f(y).backward()
    same(x.grad, y.grad.cpu(), device)
    assert 0 < int((x.grad == 0).sum()) < 64


DEMO = """
import numpy as np
from keyfold._demo import tutorial

device = late.devices[1]
images, labels = tutorial.load_digits()
key = device.type.upper()
kf.impl("demo::cross_entropy", key, tutorial.cross_entropy)
kf.impl("demo::average_", key, tutorial.average)


def train(where):
    trainer = tutorial.Trainer(tutorial.new_parameters(np.random.default_rng(0)), where)
    losses = [
        trainer.step(images[batch], labels[batch])
        for batch in np.array_split(np.arange(640), 10)
    ]
    return losses, [param.detach() for param in trainer.params] + trainer.averages


losses, parameters = train("cpu")
found, there = train(device)
assert found == losses
assert losses[-1] < losses[0]
for a, b in zip(parameters, there, strict=True):
    assert b.device == device
    assert a.numpy().tobytes() == b.cpu().numpy().tobytes()
print("equal")
"""


def test_the_demo_trains_on_the_device_as_on_the_cpu():
    # In a process of its own: the demo's operators are those of the tutorial, too.
    assert run(DEMO) == "equal\n"


def test_a_position_out_of_range_is_told_late_and_its_result_never_read(device, raises_saying):
    x = kf.asarray([1.0, 2.0, 3.0]).to(device)
    place = kf.asarray([0, 9]).to(device)
    picked = x[place]
    with raises_saying(kf.IndexOutOfRange, "9", "size 3"):
        kf.synchronize(device)
    kf.synchronize(device)
    with raises_saying(kf.IndexOutOfRange, "9", "size 3"):
        picked.sum().item()
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("call", ["allocate", "upload", "download", "launch", "run"])
def test_a_call_that_fails_is_told_and_leaks_nothing(call, raises_saying):
    with delayed_device("failing") as late:
        device = late.devices[1]

        def work():
            x = kf.asarray([1.0, 2.0]).to(device)
            return ((x + x).sum() * 2).item()

        assert work() == 12.0
        kind = kf.OutOfMemory if call == "allocate" else kf.KernelFailed
        late.fail_at(1, call)
        with raises_saying(kind, "injected", call):
            work()
        kf.synchronize(device)
        assert late.live == 0
        assert work() == 12.0


def test_planted_mistakes_show():
    with delayed_device("wrong") as late:
        device = late.devices[0]
        x = kf.asarray([1.0, 2.0])
        late.plant("reads_early")
        assert (x.to(device) + 1).tolist() != [2.0, 3.0]
        late.plant("frees_early")
        there = x.to(device)
        kf.synchronize(device)
        total = there + 1
        del there
        assert total.tolist() != [2.0, 3.0]
        late.plant("copies_silently")
        before = late.count("download")
        x.to(device).to(late.devices[1])
        assert late.count("download") == before + 1
        late.plant(None)
        assert (x.to(device) + 1).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "read", [repr, lambda x: x.tolist(), lambda x: x.cpu(), lambda x: kf.synchronize(x.device)]
)
def test_an_error_that_comes_late_names_the_operator_that_made_it(read):
    with delayed_device("lacking", devices=1) as late:
        x = kf.asarray([1.0, 2.0]).to(late.devices[0])
        result = x[kf.asarray([5]).to(late.devices[0])]
        with pytest.raises(kf.IndexOutOfRange, match=r"^aten::index: index 5 is out of range"):
            read(result)
        late.fail_at(1, "run")
        x = kf.exp(x)
        with pytest.raises(kf.KernelFailed, match=r"^aten::exp: injected: run"):
            read(x)


def test_a_fallback_checks_what_it_writes_before_it_runs(late, raises_saying):
    add = kf.ops.aten.add.out
    with delayed_device("lacking", without=["pointwise"]) as lacking:
        kf.allow_fallback("lacking", "cpu")
        for each in (late, lacking):
            device = each.devices[0]
            x = kf.asarray([[1.0, 2.0], [3.0, 4.0]]).to(device)
            shared = kf.broadcast_to(kf.asarray([0.0, 0.0]).to(device), (2, 2))
            downloads = each.count("download")
            with raises_saying(kf.InvalidValue, "aten::add: argument 'out'", "share memory"):
                add(x, x, out=shared)
            assert each.count("download") == downloads
        assert "aten::add.out" not in {
            ran.op for ran in kf.fallbacks() if ran.device_type == "lacking"
        }


def test_what_a_device_does_not_offer_is_an_error_that_names_it(raises_saying):
    with delayed_device("lacking", devices=1, without=["linalg"]) as late:
        x = kf.ones((2, 2), device=late.devices[0])
        with raises_saying(kf.NotSupported, "aten::matmul", "delayed", "allow_fallback"):
            x @ x
        assert (x + x).tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_registration_says_what_is_wrong(late, raises_saying):
    with raises_saying(kf.RegistrationError, late.name, "already"):
        delayed_device(late.name)
    with raises_saying(kf.InvalidValue, "'fft'", "linalg"):
        delayed_device("other", without=["fft"])
    for number in (0, -1, 257, 2**70):
        with raises_saying(kf.InvalidValue, "'devices'", "from 1 to 256", str(number)):
            delayed_device("other", devices=number)
        with raises_saying(kf.InvalidValue, "'streams'", "from 1 to 256", str(number)):
            delayed_device("other", streams=number)
    with raises_saying(kf.BindingError, "'devices'", "'two'"):
        delayed_device("other", devices="two")
    with raises_saying(kf.InvalidValue, "'nth'", "-1"):
        late.fail_at(-1)
    with raises_saying(kf.InvalidValue, "'guess'", "download"):
        late.count("guess")
    with raises_saying(kf.InvalidValue, "'guess'", "reads_early"):
        late.plant("guess")
    assert repr(late) == "DelayedDevice('late', devices=2)"


def test_tensors_outlive_their_device(raises_saying):
    with delayed_device("gone") as late:
        x = kf.asarray([1.0, 2.0]).to(late.devices[1])
        total = (x * 3).sum()
    assert total.cpu().item() == 9.0
    assert "device='gone:1'" in repr(x)
    assert not late.remove()
    with raises_saying(kf.MissingKernel, "GONE"):
        x + x
    with raises_saying(kf.MissingKernel, "GONE"):
        kf.ones(2, device="gone")


def run(body):
    """Run a program that has a device open, `late`, and a tensor with work queued, `x`."""
    program = """
    import os, sys, threading
    import keyfold as kf
    from keyfold.testing import delayed_device
    late = delayed_device()
    x = kf.asarray([1.0, 2.0]).to(late.devices[1])
    x = (x @ x) * kf.ones(1 << 16, device=late.devices[1])
    """
    text = textwrap.dedent(program) + textwrap.dedent(body)
    # From 3.12 on CPython warns of a fork with threads, and the device has one.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_interpreter_exits_with_work_queued():
    assert run("print('end')") == "end\n"
    assert run("threading.Thread(target=x.cpu).start(); print('end')") == "end\n"
    assert run("kf.keep = x, late; print('end')") == "end\n"


def test_a_child_of_fork_is_refused_and_ends_cleanly():
    out = run("""
    pid = os.fork()
    if pid == 0:
        for work in (lambda: x.cpu(), lambda: x + x, lambda: kf.ones(2, device=x.device)):
            try:
                work()
            except kf.DeviceError as error:
                assert "before a fork" in str(error), error
            else:
                os._exit(2)
        del x
        assert kf.ones(2).sum().item() == 2.0
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    print(x[0].item())
    """)
    assert out == "5.0\n"
