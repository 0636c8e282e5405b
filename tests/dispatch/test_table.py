"""The table rules over every subset of registration keys, against a naive model.

The model is written from the rules alone; the engine's code was not looked at. The table may
depend only on what is registered: not on the order, and not on what was there before.
"""

import itertools
import random

import pytest

import keyfold as kf

I, E, A = "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Autograd"  # noqa: E741
KEYS = ["CPU", "CUDA", "Meta", "AutogradCPU", "AutogradCUDA", A, I, E]
SUBSETS = [subset for size in range(len(KEYS) + 1) for subset in itertools.combinations(KEYS, size)]


def backends():
    return [key.name for key in kf.DispatchKey if key.is_backend]


def model(active):
    """The table that follows from the rules: from runtime key to the key registered at."""
    active = set(active)
    table = {}
    for backend in backends():
        for key in [backend, "Autograd" + backend]:
            on_backend = key == backend
            if key in active:
                winner = key
            elif on_backend and E in active:
                winner = E
            elif I in active and (on_backend or not active & {backend, E}):
                winner = I
            elif not on_backend and A in active:
                winner = A
            else:
                continue
            table[key] = winner
    return table


def shown(op):
    return {key: entry.registered_at for key, entry in op.table().items()}


@pytest.fixture
def op():
    """An operator of its own dispatcher, one of which serves many subsets."""
    d = kf.Dispatcher()
    d.define("f(Tensor x) -> Tensor")
    return d, d.get_op("f")


def kernel(x):
    return x


@pytest.mark.parametrize("seed", range(3))
def test_every_subset_in_shuffled_orders(op, seed):
    d, op = op
    rng = random.Random(seed)
    for subset in SUBSETS:
        order = rng.sample(subset, len(subset))
        handles = {}
        for at, key in enumerate(order):
            handles[key] = d.impl(op, key, kernel)
            assert shown(op) == model(order[: at + 1]), order
        for key in rng.sample(order, len(order)):
            assert handles.pop(key).remove()
            assert shown(op) == model(handles), order
        assert len(op.table()) == 0
        assert d.kernel_count() == 0


def test_the_documented_columns(op):
    d, op = op
    columns = ["CPU", "CUDA", "AutogradCPU", "AutogradCUDA"]
    examples = [
        ([I], [I, I, I, I]),
        ([I, "CPU"], ["CPU", I, None, I]),
        ([A], [None, None, A, A]),
        ([I, "CPU", A], ["CPU", I, A, I]),
        ([E, "CPU"], ["CPU", E, None, None]),
        ([E, "CPU", A], ["CPU", E, A, A]),
        ([E, I, "CPU", A], ["CPU", E, A, A]),
        ([I, "CPU", A, "AutogradCPU"], ["CPU", I, "AutogradCPU", I]),
    ]
    for registered, expected in examples:
        handles = [d.impl(op, key, kernel) for key in registered]
        table = shown(op)
        assert [table.get(column) for column in columns] == expected, registered
        for handle in handles:
            handle.remove()


def test_the_entry_is_the_kernel_registered_there(op):
    d, op = op
    kernels = {key: (lambda x, key=key: x) for key in KEYS}
    for key, function in kernels.items():
        d.impl(op, key, function)
    for entry in op.table().values():
        assert entry.kernel is kernels[entry.registered_at]
    assert op.kernels == kernels


def test_shadowing_and_unshadowing_dont_change_the_rules(op):
    d, op = op
    for subset in SUBSETS[::7]:
        handles = [d.impl(op, key, kernel) for key in subset]
        shadows = [d.impl(op, key, lambda x: x, override="shadow") for key in subset]
        assert shown(op) == model(subset)
        for handle in shadows + handles:
            handle.remove()
        assert len(op.table()) == 0


def test_functionalities_without_an_alias(op):
    d, op = op
    functionalities = ["Sparse", "Quantized", "Nested", "Autocast", "Vmap", "Tracer"]
    for functionality in functionalities:
        wide = d.impl(op, functionality, kernel)
        assert shown(op) == {f"{functionality}{b}": functionality for b in backends()}
        narrow = d.impl(op, f"{functionality}CUDA", kernel)
        assert shown(op)[f"{functionality}CUDA"] == f"{functionality}CUDA"
        wide.remove()
        assert shown(op) == {f"{functionality}CUDA": f"{functionality}CUDA"}
        narrow.remove()
        assert len(op.table()) == 0


def test_composites_dont_reach_other_functionalities(op):
    d, op = op
    d.impl(op, I, kernel)
    d.impl(op, E, kernel)
    d.impl(op, A, kernel)
    assert not any(key.startswith(("Sparse", "Tracer", "Autocast")) for key in op.table())


def test_calls_follow_the_table(op, word):
    d, op = op
    for subset in SUBSETS[::3]:
        handles = [d.impl(op, key, lambda x, key=key: word(key)) for key in subset]
        table = model(subset)
        for backend, grad in itertools.product(["CPU", "CUDA", "Meta"], [False, True]):
            x = word("x", backend, "Autograd") if grad else word("x", backend)
            # Autograd is a mode: without an entry it is skipped.
            expected = (table.get("Autograd" + backend) if grad else None) or table.get(backend)
            if expected is None:
                with pytest.raises(kf.MissingKernel):
                    op(x)
            else:
                assert op(x).text == expected, (subset, backend, grad)
        for handle in handles:
            handle.remove()


def test_fallbacks_come_last(op):
    d, op = op

    def fallback(op, keyset, args, kwargs):
        raise AssertionError

    handle = d.fallback("Autograd", fallback)
    d.impl(op, "CPU", kernel)
    assert op.table(fallbacks=True)["AutogradCPU"].rule == "Fallback"
    own = d.impl(op, A, kernel)
    assert op.table(fallbacks=True)["AutogradCPU"].registered_at == "Autograd"
    assert op.table(fallbacks=True)["AutogradCPU"].kernel is kernel
    own.remove()
    handle.remove()
    assert shown(op) == {"CPU": "CPU"}
