"""Libraries: what belongs to a namespace, registered together and taken back together."""

import gc
import threading
import time

import pytest

import keyfold as kf
from tests.dispatch.kernels import one, two, value


def test_a_library_acts_at_once_outside_with(lib, ns):
    handle = lib.define("f(Tensor x) -> Tensor")
    kernel = lib.impl("f", one, "CPU")
    assert value(kf._default.dispatcher, f"{ns}::f") == 1
    assert lib.handles == (handle, kernel)
    lib.close()
    assert f"{ns}::f" not in kf._default.dispatcher.operator_names()
    assert lib.handles == ()


def test_a_library_stages_until_its_block_ends(d):
    library = kf.Library("lib", dispatcher=d)
    with library:
        assert library.impl("f", one, "CPU") is None, "before its definition"
        assert library.define("f(Tensor x) -> Tensor") is None
        assert d.operator_names() == []
    assert value(d, "lib::f") == 1, "registered, and stays so"
    assert len(library.handles) == 2
    library.close()
    assert d.operator_names() == []


def test_a_library_rolls_back_on_an_exception(d):
    library = kf.Library("lib", dispatcher=d)

    def fail():
        with library:
            library.define("f(Tensor x) -> Tensor")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert d.operator_names() == []
    assert library.handles == ()
    library.define("f(Tensor x) -> Tensor")
    assert d.operator_names() == ["lib::f"]


def test_a_failed_library_leaves_what_it_would_have_replaced(d):
    d.define("lib::f(Tensor x) -> Tensor")
    first = d.impl("lib::f", "CPU", lambda x: x)

    def fail():
        with kf.Library("lib", dispatcher=d) as library:
            library.impl("f", lambda x: x * 2, "CPU", override="replace")
            library.impl("f", lambda: 1, "Meta")

    with pytest.raises(kf.RegistrationError, match="contradicts"):
        fail()
    assert first.active
    assert list(d.ops.lib.f.kernels) == ["CPU"]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda lib: lib.impl("missing", one, "CPU"),
        lambda lib: lib.impl("f", two, "CPU"),
        lambda lib: lib.impl("f", lambda: 1, "CUDA"),
        lambda lib: lib.impl("f", one, "Nonsense"),
        lambda lib: lib.define("g(Tensor"),
        lambda lib: lib.define("f(int n) -> int"),
    ],
)
def test_a_library_registers_all_or_nothing(d, mistake):
    library = kf.Library("lib", dispatcher=d)

    def stage():
        with library:
            library.define("f(Tensor x) -> Tensor")
            library.impl("f", one, "CPU")
            mistake(library)

    with pytest.raises(kf.Error):
        stage()
    assert d.operator_names() == []
    assert d.kernel_count() == 0
    with library:
        library.define("f(Tensor x) -> Tensor")
    assert d.operator_names() == ["lib::f"]


def test_a_library_that_goes_out_of_scope_stays_registered(d):
    library = kf.Library("lib", dispatcher=d)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", one, "CPU")
    del library
    gc.collect()
    assert value(d, "lib::f") == 1


def test_a_library_keeps_to_its_namespace(d, raises_saying):
    library = kf.Library("lib", dispatcher=d)
    with raises_saying(ValueError, "lib", "other::f"):
        library.define("other::f(Tensor x) -> Tensor")
    library.define("lib::f(Tensor x) -> Tensor")
    library.impl("lib::f", one, "CPU")
    with raises_saying(ValueError, "identifier", "a b"):
        kf.Library("a b")


def test_a_library_can_override(d):
    first, second = kf.Library("lib", dispatcher=d), kf.Library("lib", dispatcher=d)
    first.define("f(Tensor x) -> Tensor")
    first.impl("f", one, "CPU")
    second.impl("f", two, "CPU", override="shadow")
    assert value(d, "lib::f") == 2
    second.close()
    assert value(d, "lib::f") == 1


def test_a_library_passes_with_keyset_on(d, word):
    library = kf.Library("lib", dispatcher=d)
    with library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda keyset, x: word(repr(keyset)), "CPU", with_keyset=True)
    assert d.call("lib::f", word("x")).text == "DispatchKeySet(CPU)"


def test_a_library_is_one_block_at_a_time(d):
    library = kf.Library("lib", dispatcher=d)
    with library, pytest.raises(RuntimeError, match="with block"):
        library.__enter__()
    library.define("f(Tensor x) -> Tensor")
    assert d.operator_names() == ["lib::f"]


def test_a_block_that_ends_is_not_entered_by_another_thread(d):
    """The end of the old block would drop or register the new block's registrations."""

    class Slow(kf.Library):
        def _leave(self, failed):
            if self is library and not entered:
                entered.append(None)
                thread = threading.Thread(target=enter)
                thread.start()
                thread.join()
            super()._leave(failed)

    def enter():
        try:
            with library:
                library.define("second(Tensor x) -> Tensor")
        except kf.GuardError as error:
            refused.append(str(error))

    entered, refused = [], []
    library = Slow("lib", dispatcher=d)
    with library:
        library.define("first(Tensor x) -> Tensor")
    assert len(refused) == 1
    assert "in a with block already" in refused[0]
    assert d.operator_names() == ["lib::first"]
    with library:
        library.define("second(Tensor x) -> Tensor")
    assert d.operator_names() == ["lib::first", "lib::second"]


def test_what_a_thread_adds_while_a_block_ends_is_registered(d):
    library = kf.Library("lib", dispatcher=d)
    library.define("f(Tensor x) -> Tensor")

    class Late(list):
        """Ends the block between the look whether it is open and the addition."""

        def append(self, item):
            leaver.start()
            while library._is_open:
                time.sleep(0.001)
            # Where nothing makes it wait for this addition, the block ends here.
            leaver.join(timeout=0.3)
            super().append(item)

    leaver = threading.Thread(target=library.__exit__, args=(None, None, None))
    library.__enter__()
    library._kernels = Late()
    library.impl("f", one, "CPU")
    leaver.join()
    assert value(d, "lib::f") == 1


def test_closing_one_library_leaves_anothers_kernels(d):
    first, second = kf.Library("lib", dispatcher=d), kf.Library("lib", dispatcher=d)
    first.define("f(Tensor x) -> Tensor")
    first.impl("f", one, "CPU")
    second.impl("f", two, "CUDA")
    second.close()
    assert set(d.get_op("lib::f").kernels) == {"CPU"}


def test_a_library_takes_only_operators_of_its_namespace(d):
    d.define("other::f(Tensor x) -> Tensor")
    library = kf.Library("lib", dispatcher=d)
    with pytest.raises(ValueError, match="can't register 'other::f'"):
        library.impl(d.ops.other.f.default, lambda x: x, "CPU")
    with library, pytest.raises(RuntimeError, match="still collecting"):
        library.close()
