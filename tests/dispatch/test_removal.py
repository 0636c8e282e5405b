"""Use after removal is `OperatorRemoved`, each time; an operator defined again is found."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

import keyfold as kf


class Removable:
    """`NS::f` of the process's dispatcher, and every way to hold it."""

    def __init__(self, ns, word):
        self.word = word
        self.library = kf.Library(ns)
        self.name = f"{ns}::f"
        self.define("cpu")
        self.namespace = getattr(kf.ops, ns)
        self.packet = self.namespace.f
        self.overload = self.packet.default
        self.op = kf.get_op(self.name)
        self.kernel = kf.get_kernel(self.name, "CPU")

    def define(self, text):
        self.library.define("f(Tensor x) -> Tensor")
        self.handle = self.library.impl("f", lambda x: self.word(text), "CPU")


@pytest.fixture
def held(ns, word):
    removable = Removable(ns, word)
    yield removable
    removable.library.close()


USES = {
    "op": lambda h, x: h.op(x),
    "packet": lambda h, x: h.packet(x),
    "overload": lambda h, x: h.overload(x),
    "kernel": lambda h, x: h.kernel(x),
    "overload of the packet": lambda h, x: h.packet.default(x),
    "keywords": lambda h, x: h.op(x=x),
    "op.redispatch": lambda h, x: h.op.redispatch("CPU", x),
    "kf.redispatch of op": lambda h, x: kf.redispatch(h.op, "CPU", x),
    "kf.redispatch of packet": lambda h, x: kf.redispatch(h.packet, "CPU", x),
    "call_direct": lambda h, x: h.op.call_direct("CPU", x),
    "get_kernel of op": lambda h, x: kf.get_kernel(h.op, "CPU"),
    "explain": lambda h, x: kf.explain(h.packet, x),
    "impl": lambda h, x: kf.impl(h.op, "CUDA", lambda x: x),
    "impl of packet": lambda h, x: kf.impl(h.packet, "CUDA", lambda x: x),
    "packet.schema": lambda h, x: h.packet.schema,
}


@pytest.mark.parametrize("use", USES)
def test_use_after_the_operator_was_removed(held, word, use, raises_saying):
    held.library.close()
    for _ in range(3):
        with raises_saying(LookupError, held.name, "removed") as raised:
            USES[use](held, word("x"))
        assert isinstance(raised.value, kf.OperatorRemoved)


def test_every_use_works_before(held, word):
    for name, use in USES.items():
        if not name.startswith("impl"):
            use(held, word("x"))


def test_names_of_a_removed_operator_are_unknown(held, word):
    held.library.close()
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(held.name)
    with pytest.raises(kf.UnknownOperator):
        kf.redispatch(held.name, "CPU", word("x"))
    with pytest.raises(AttributeError):
        held.namespace.f


def test_what_can_be_looked_at_stays_so(held):
    held.library.close()
    assert held.op.removed
    assert held.op.name == held.name
    assert "removed" in repr(held.op)
    assert held.op.kernels == {}
    assert len(held.op.table()) == 0
    assert "removed" in repr(held.kernel)
    assert held.handle.remove() is False
    assert not held.handle.active


def test_a_removed_kernel(held, word, raises_saying):
    held.handle.remove()
    with raises_saying(LookupError, held.name, "removed") as raised:
        held.kernel(word("x"))
    assert isinstance(raised.value, kf.OperatorRemoved)
    with raises_saying(NotImplementedError, held.name, "no kernel registered"):
        held.op(word("x"))


def test_a_replaced_kernel_is_removed(held, word):
    kf.impl(held.name, "CPU", lambda x: word("new"), override="replace")
    with pytest.raises(kf.OperatorRemoved):
        held.kernel(word("x"))
    assert held.op(word("x")).text == "new"


def test_a_shadowed_kernel_isnt_removed(held, word):
    handle = kf.impl(held.name, "CPU", lambda x: word("new"), override="shadow")
    assert held.kernel(word("x")).text == "cpu"
    handle.remove()
    assert held.op(word("x")).text == "cpu"


def test_removal_and_redefinition_are_seen_through_ops(held, ns, word):
    assert getattr(kf.ops, ns).f(word("x")).text == "cpu"
    held.library.close()
    with pytest.raises(AttributeError):
        getattr(kf.ops, ns).f
    held.define("again")
    assert getattr(kf.ops, ns).f(word("x")).text == "again"
    assert held.namespace.f(word("x")).text == "again"
    assert kf.redispatch(held.name, "CPU", word("x")).text == "again"
    assert held.packet(word("x")).text == "again", "a packet is a name, and the name means it again"
    for old in [held.op, held.overload, held.kernel]:
        with pytest.raises(kf.OperatorRemoved):
            old(word("x"))


def test_redefinition_with_another_schema(held, ns, word):
    held.library.close()
    held.library.define("f(Tensor x, int n) -> Tensor")
    held.library.impl("f", lambda x, n: word(f"n={n}"), "CPU")
    assert getattr(kf.ops, ns).f(word("x"), 3).text == "n=3"
    assert kf.ops.__getattr__(ns).f.schema.endswith("int n) -> Tensor")


def test_an_overload_that_is_added_and_removed_is_seen(held, word):
    more = held.library.define("f.more(Tensor x, int n) -> Tensor")
    held.library.impl("f.more", lambda x, n: word("more"), "CPU")
    assert held.packet(word("x"), 1).text == "more"
    overload = held.packet.more
    more.remove()
    assert held.packet.overloads() == ["default"]
    with pytest.raises(kf.OperatorRemoved):
        overload(word("x"), 1)
    with pytest.raises(TypeError):
        held.packet(word("x"), 1)
    assert held.packet(word("x")).text == "cpu"


def test_a_kernel_may_remove_itself_while_it_runs(d, word):
    d.define("ns::f(Tensor x) -> Tensor")
    data = np.arange(3)

    def once(x):
        handle.remove()
        gc.collect()
        return word(f"once {data.sum()}")

    handle = d.impl("ns::f", "CPU", once)
    assert d.call("ns::f", word("x")).text == "once 3"
    with pytest.raises(kf.MissingKernel):
        d.call("ns::f", word("x"))


class Captured:
    """An object that a kernel refers to."""


@pytest.mark.parametrize("how", ["removes itself", "removes its operator", "replaces itself"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_kernel_held_that_removes_itself_goes_with_its_call(d, word, how, fails):
    captured = Captured()
    alive = weakref.ref(captured)

    def kernel(x, held=captured):
        if how == "removes itself":
            handle.remove()
        elif how == "removes its operator":
            definition.remove()
        else:
            d.impl("ns::f", "CPU", lambda x: x, override="replace")
        assert alive() is held
        if fails:
            raise KeyError("failed")
        return x

    definition = d.define("ns::f(Tensor x) -> Tensor")
    op = d.get_op("ns::f")
    handle = d.impl("ns::f", "CPU", kernel)
    del kernel, captured
    if fails:
        with pytest.raises(KeyError) as raised:
            op(word("x"))
        # The traceback has the kernel's frame.
        del raised
    else:
        op(word("x"))
    assert alive() is None


def test_what_another_thread_removed_goes_with_the_call_that_runs_it(d, word):
    captured = Captured()
    alive = weakref.ref(captured)

    def kernel(x, held=captured):
        thread = threading.Thread(target=handle.remove)
        thread.start()
        thread.join()
        assert alive() is held
        return x

    d.define("ns::f(Tensor x) -> Tensor")
    op = d.get_op("ns::f")
    handle = d.impl("ns::f", "CPU", kernel)
    del kernel, captured
    op(word("x"))
    assert alive() is None


def test_a_kernel_may_remove_its_operator_while_it_runs(d, word):
    definition = d.define("ns::f(Tensor x) -> Tensor")

    def last(x):
        definition.remove()
        gc.collect()
        with pytest.raises(kf.OperatorRemoved):
            op(x)
        return word("last")

    d.impl("ns::f", "CPU", last)
    del last
    op = d.get_op("ns::f")
    assert op(word("x")).text == "last"
    with pytest.raises(kf.OperatorRemoved):
        op(word("x"))


def test_a_kernel_may_replace_itself_while_it_runs(d, word):
    d.define("ns::f(Tensor x) -> Tensor")

    def first(x):
        d.impl("ns::f", "CPU", lambda x: word("second"), override="replace")
        assert d.call("ns::f", x).text == "second"
        return word("first")

    d.impl("ns::f", "CPU", first)
    assert d.call("ns::f", word("x")).text == "first"
    assert d.call("ns::f", word("x")).text == "second"


def test_a_layer_whose_operator_goes_while_it_runs(d, word):
    definition = d.define("ns::f(Tensor x) -> Tensor")
    op = d.get_op("ns::f")
    d.impl("ns::f", "CPU", lambda x: x)

    @d.impl("ns::f", "Tracer", with_keyset=True)
    def layer(keyset, x):
        definition.remove()
        return op.redispatch(keyset.remove("Tracer"), x)

    with pytest.raises(kf.OperatorRemoved) as raised:
        op(word("x", "CPU", "Tracer"))
    assert raised.value.__notes__ == ["keyfold: raised in ns::f: Tracer"]


def test_a_native_kernel_outlives_its_removal_while_it_runs(d, testing):
    """`get_kernel` results and handles of native kernels end as Python ones do."""
    kernel = kf.get_kernel(testing.identity, "CPU")
    x = np.ones(1)
    assert kernel(x, x) is x
    shadow = kf.impl(testing.identity, "CPU", lambda x, y: y, override="shadow")
    try:
        assert kernel(x, x) is x
    finally:
        shadow.remove()
    assert testing.identity(x, np.zeros(1)) is x


def test_a_removed_kernel_is_freed(d, word):
    class Kernel:
        def __call__(self, x):
            return x

    d.define("ns::f(Tensor x) -> Tensor")
    kernel = Kernel()
    alive = weakref.ref(kernel)
    handle = d.impl("ns::f", "CPU", kernel)
    d.call("ns::f", word("x"))
    del kernel
    gc.collect()
    assert alive() is not None
    handle.remove()
    # A retired table is freed by a later writer.
    d.define("ns::g(Tensor x) -> Tensor")
    gc.collect()
    assert alive() is None


def test_a_dispatcher_that_goes_frees_its_kernels(word):
    class Kernel:
        def __call__(self, x):
            return x

    d = kf.Dispatcher()
    d.define("f(Tensor x) -> Tensor")
    kernel = Kernel()
    alive = weakref.ref(kernel)
    d.impl("f", "CPU", kernel)
    d.ops.f(word("x"))
    del kernel, d
    gc.collect()
    assert alive() is None


def test_an_operator_of_a_dispatcher_that_is_gone(word):
    d = kf.Dispatcher()
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    op = d.get_op("f")
    del d
    gc.collect()
    x = word("x")
    assert op(x) is x


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_what_the_parents_threads_held_is_freed_in_a_child_of_fork(d, word):
    """A thread of the parent that is inside a kernel isn't in the child."""
    entered, leave = threading.Event(), threading.Event()

    def waits(x):
        entered.set()
        assert leave.wait(60)
        return x

    captured = Captured()
    alive = weakref.ref(captured)
    d.define("ns::f(Tensor x) -> Tensor")
    op = d.get_op("ns::f")
    d.impl("ns::f", "CPU", waits)
    # In the same table, which the waiting thread holds.
    handle = d.impl("ns::f", "CUDA", lambda x, held=captured: x)
    del captured
    thread = threading.Thread(target=op, args=[word("x")])
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        handle.remove()
        os._exit(0 if alive() is None else 1)
    _, status = os.waitpid(child, 0)
    handle.remove()
    held_in_the_parent = alive() is not None
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert held_in_the_parent
    assert alive() is None
