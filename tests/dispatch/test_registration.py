"""Registering and taking back: handles, overrides, reloads, libraries, decorators."""

import gc
import linecache

import numpy as np
import pytest

import keyfold as kf
from tests.dispatch.kernels import ZERO, one, two, value


def ten(x):
    return x + 10


def test_a_handle_says_what_it_holds(f):
    handle = f.impl("f", "CPU", one)
    assert handle.active
    assert (handle.name, handle.key) == ("f", "CPU")
    assert "tests.dispatch.kernels.one" in handle.origin
    assert "one" in handle.origin
    assert handle.remove() is True
    assert not handle.active
    assert handle.origin is None


def test_removing_restores_nothing_where_nothing_was(f):
    handle = f.impl("f", "CPU", one)
    assert f.has_kernel("f", "CPU")
    handle.remove()
    assert not f.has_kernel("f", "CPU")
    assert f.kernel_count() == 0


def test_removing_twice_does_nothing(f):
    handle = f.impl("f", "CPU", one)
    assert handle.remove() is True
    assert handle.remove() is False
    f.impl("f", "CPU", two)
    assert handle.remove() is False
    assert value(f) == 2


def test_a_second_kernel_is_an_error_that_names_both_places(f, raises_saying):
    f.impl("f", "CPU", one)
    with raises_saying(ValueError, "f already has a kernel at CPU", "one", "two", "override=") as e:
        f.impl("f", "CPU", two)
    assert str(e.value).count("kernels.py:") == 2
    assert isinstance(e.value, kf.RegistrationError)
    assert value(f) == 1


def test_a_shadow_comes_off_again(f):
    f.impl("f", "CPU", one)
    shadow = f.impl("f", "CPU", two, override="shadow")
    assert value(f) == 2
    assert shadow.remove()
    assert value(f) == 1


def test_the_shadowed_kernel_may_go_first(f):
    below = f.impl("f", "CPU", one)
    shadow = f.impl("f", "CPU", two, override="shadow")
    assert below.active
    assert below.remove()
    assert value(f) == 2
    shadow.remove()
    assert not f.has_kernel("f", "CPU")


def test_the_shadow_stack_is_listed_from_the_top(f):
    f.impl("f", "CPU", one)
    f.impl("f", "CPU", two, override="shadow")
    f.impl("f", "CPU", ten, override="shadow")
    stack = f.get_op("f").shadow_stacks["CPU"]
    assert ["ten" in stack[0], "two" in stack[1], "one" in stack[2]] == [True] * 3
    assert f.kernel_count() == 1, "shadowed ones aren't counted"


def test_a_kernel_calls_the_one_below_it(f):
    f.impl("f", "CPU", one)
    handle = f.impl("f", "CPU", lambda x: handle.shadowed(x) * 10, override="shadow")
    assert value(f) == 10


def test_calling_below_where_nothing_is_shadowed(f, raises_saying):
    handle = f.impl("f", "CPU", one)
    with raises_saying(NotImplementedError, "shadows no kernel", "f"):
        handle.shadowed(ZERO)


def test_replace_ends_the_old_handle(f):
    old = f.impl("f", "CPU", one)
    new = f.impl("f", "CPU", two, override="replace")
    assert value(f) == 2
    assert not old.active
    assert old.remove() is False
    assert value(f) == 2
    new.remove()
    assert not f.has_kernel("f", "CPU"), "a replaced kernel doesn't come back"


def test_an_unknown_override(f, raises_saying):
    with raises_saying(ValueError, "overwrite", "shadow", "replace"):
        f.impl("f", "CPU", one, override="overwrite")
    assert not f.has_kernel("f", "CPU")


def run(source, path, **names):
    """Runs source as if it were the file at `path`, as importing and reloading a module does."""
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    scope = {"__name__": "reloaded_module", **names}
    exec(compile(source, path, "exec"), scope)
    return scope


def test_reloading_the_same_function_replaces_it(f):
    source = "def kernel(x):\n    return x + {}\nhandle = d.impl('f', 'CPU', kernel)\n"
    first = run(source.format(1), "/reload/a.py", d=f)
    second = run("# moved down\n\n" + source.format(2), "/reload/a.py", d=f)
    assert value(f) == 2
    assert first["handle"].remove() is False
    assert second["handle"].active


def test_the_same_line_of_a_file_replaces_too(f):
    source = "d.impl('f', 'CPU', lambda x: x + {})\n"
    run(source.format(1), "/reload/b.py", d=f)
    run(source.format(2), "/reload/b.py", d=f)
    assert value(f) == 2


def test_a_lambda_on_another_line_is_another_kernel(f):
    source = "d.impl('f', 'CPU', lambda x: x)\n"
    run(source, "/reload/c.py", d=f)
    with pytest.raises(kf.RegistrationError):
        run("\n" + source, "/reload/c.py", d=f)


def test_a_local_function_on_another_line_is_another_kernel(f):
    source = "def make():\n    def kernel(x):\n        return x\n    return kernel\n"
    source += "d.impl('f', 'CPU', make())\n"
    run(source, "/reload/d.py", d=f)
    with pytest.raises(kf.RegistrationError):
        run("\n" + source, "/reload/d.py", d=f)


def test_one_function_may_serve_several_keys_and_operators(f):
    f.define("g(Tensor x) -> Tensor")
    f.impl("f", "CPU", one)
    f.impl("f", "CUDA", one)
    f.impl("g", "CPU", one)
    assert f.kernel_count() == 3


def test_dropping_a_handle_unregisters_nothing(f):
    f.impl("f", "CPU", one)
    gc.collect()
    assert value(f) == 1


def test_impl_is_a_decorator_that_gives_the_function_back(f):
    @f.impl("f", "CPU")
    def kernel(x):
        return x + 5

    assert kernel(1) == 6
    assert f.get_op("f").kernels == {"CPU": kernel}
    assert value(f) == 5


def test_impl_of_the_module_is_a_decorator(lib, ns):
    lib.define("f(Tensor x) -> Tensor")

    @kf.impl(f"{ns}::f", "CPU")
    def kernel(x):
        return x + 5

    assert getattr(kf.ops, ns).f.default.kernels["CPU"] is kernel


def test_decorators_stack(f):
    @f.impl("f", "CPU")
    @f.impl("f", "CUDA")
    def kernel(x):
        return x

    assert set(f.get_op("f").kernels) == {"CPU", "CUDA"}


def test_kernels_are_the_functions_themselves(f):
    f.impl("f", "CPU", one)
    f.impl("f", "CompositeImplicitAutograd", two)
    assert f.get_op("f").kernels == {"CPU": one, "CompositeImplicitAutograd": two}


@pytest.mark.parametrize("key", ["CPU", kf.DispatchKey.CPU])
def test_a_key_is_a_name_or_an_object(f, key):
    f.impl("f", key, one)
    assert f.has_kernel("f", "CPU")
    assert f.get_op("f").has_kernel(kf.DispatchKey.CPU)


def test_an_operator_is_a_name_or_an_object(f):
    f.impl(f.get_op("f"), "CPU", one)
    f.impl(f.ops.f, "CUDA", one)
    f.impl(f.ops.f.default, "Meta", one)
    assert set(f.get_op("f").kernels) == {"CPU", "CUDA", "Meta"}


def test_a_kernel_with_keyset_gets_the_whole_set(f, word):
    seen = []

    def kernel(keyset, x):
        seen.append(keyset)
        return x

    f.impl("f", "Autograd", kernel, with_keyset=True)
    f.call("f", word("x", "CPU", "Autograd", "Tracer"))
    assert seen == [kf.DispatchKeySet("Tracer", "Autograd", "CPU")], "nothing masked, own key in"


def test_a_callable_object_is_a_kernel(f):
    class Adder:
        def __call__(self, x):
            return x + 7

    adder = Adder()
    f.impl("f", "CPU", adder)
    assert value(f) == 7
    assert f.get_op("f").kernels["CPU"] is adder


def test_a_builtin_without_a_signature_is_taken_as_it_is(f):
    f.impl("f", "CPU", np.negative)
    assert f.call("f", np.ones(2)).tolist() == [-1, -1]


@pytest.mark.parametrize("wrong", [3, "f", [one]])
def test_a_kernel_must_be_callable(f, wrong):
    with pytest.raises(TypeError, match="callable"):
        f.impl("f", "CPU", wrong)
    assert f.kernel_count() == 0


SIGNATURES = [
    (lambda: None, "positional"),
    (lambda x: None, "positional"),
    (lambda x, n, m: None, "3"),
    (lambda x, n, *, other: None, "other"),
    (lambda x, n: None, "mode"),
]


@pytest.mark.parametrize(("kernel", "part"), SIGNATURES)
def test_a_signature_that_contradicts_the_schema(d, kernel, part, raises_saying):
    d.define("f(Tensor x, int n=2, *, str mode='up') -> Tensor".replace("'", '"'))
    with raises_saying(ValueError, "f: the kernel", "contradicts the schema", "Tensor x", part):
        d.impl("f", "CPU", kernel)
    assert d.kernel_count() == 0


@pytest.mark.parametrize(
    "kernel",
    [
        lambda a, b, *, mode: a,
        lambda x, n, extra=1, *, mode, other=2: x,
        lambda *args, **kwargs: args[0],
        lambda x, n, mode: x,
        lambda x, *rest, mode="?": x,
    ],
)
def test_a_signature_that_fits_in_another_way(d, kernel):
    d.define('f(Tensor x, int n=2, *, str mode="up") -> Tensor')
    d.impl("f", "CPU", kernel)
    assert d.call("f", ZERO) is ZERO


def test_with_keyset_counts_one_more_parameter(f):
    with pytest.raises(kf.RegistrationError):
        f.impl("f", "CPU", one, with_keyset=True)
    f.impl("f", "CPU", lambda keyset, x: x, with_keyset=True)


def test_defining_the_same_again_gives_another_handle(d):
    first = d.define("f(Tensor x) -> Tensor")
    second = d.define("f(Tensor x) -> Tensor")
    op = d.get_op("f")
    first.remove()
    assert not op.removed
    second.remove()
    assert op.removed


def test_defining_differently_shows_both(f, raises_saying):
    parts = ["f is already defined", "f(Tensor x) -> Tensor", "f(Tensor x, int n) -> Tensor"]
    with raises_saying(ValueError, *parts):
        f.define("f(Tensor x, int n) -> Tensor")
    assert f.get_op("f").schema == "f(Tensor x) -> Tensor"


def test_a_kernel_before_its_schema(ns, raises_saying):
    with raises_saying(AttributeError, f"define {ns}::f before impl {ns}::f"):
        kf.impl(f"{ns}::f", "CPU", one)


def test_register_defines_on_first_use(d):
    d.register("add", "CPU", lambda inputs: inputs[0])
    assert d.get_op("add").schema == "add(Tensor[] inputs) -> Tensor"
    d.register("add", "CUDA", lambda inputs: inputs[0])
    assert d.kernel_count() == 2


def test_isolated_dispatchers_share_nothing():
    a, b = kf.Dispatcher(), kf.Dispatcher()
    a.define("f(Tensor x) -> Tensor")
    b.define("f(int n) -> int")
    a.impl("f", "CPU", one)
    assert not b.has_kernel("f", "CPU")
    assert "f" not in kf._default.dispatcher.operator_names()


def test_fallthrough_registered_as_a_kernel(f, word):
    f.impl("f", "CPU", lambda x: word("cpu"))
    f.impl("f", "Autograd", lambda x: word("grad"))
    f.impl("f", "AutogradCPU", kf.fallthrough)
    op = f.get_op("f")
    assert op.fallthrough == ["AutogradCPU"]
    assert op.kernels["AutogradCPU"] is kf.fallthrough
    assert f.call("f", word("x", "CPU", "Autograd")).text == "cpu"


def test_fallthrough_called_as_a_function(lib, ns, word):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: word("cpu"), "CPU")
    handle = kf.fallthrough(f"{ns}::f", "Profiler")
    assert kf.get_op(f"{ns}::f").fallthrough == ["Profiler"]
    with kf.include_keys("Profiler"):
        assert kf.get_op(f"{ns}::f")(word("x")).text == "cpu"
    assert handle.remove()


@pytest.mark.parametrize("key", ["CPU", "Sparse", "Vmap", "SparseCPU", "CompositeImplicitAutograd"])
def test_fallthrough_only_where_calls_may_skip(f, key, raises_saying):
    with raises_saying(ValueError, "f", "fallthrough", key):
        f.impl("f", key, kf.fallthrough)


def test_a_fallback_gets_operator_keyset_args_and_kwargs(d, word):
    seen = []
    d.define('f(Tensor x, int n=2, *, str mode="up") -> Tensor')
    d.impl("f", "CPU", lambda x, n, *, mode: word(f"{x.text} {n} {mode}"))

    def fallback(op, keyset, args, kwargs):
        seen.append((op, keyset, args, kwargs))
        return op.redispatch(keyset.remove("Tracer"), *args, **kwargs)

    handle = d.fallback("Tracer", fallback)
    x = word("x", "CPU", "Tracer")
    assert d.call("f", x, mode="down").text == "x 2 down"
    ((op, keyset, args, kwargs),) = seen
    assert op is d.get_op("f")
    assert keyset == kf.DispatchKeySet("Tracer", "CPU")
    assert (args, kwargs) == ((x, 2), {"mode": "down"})
    assert handle.remove()
    assert d.call("f", x).text == "x 2 up"
    assert len(seen) == 1


def test_an_operators_own_kernel_beats_the_fallback(f, word):
    f.impl("f", "CPU", lambda x: word("cpu"))
    f.fallback("Tracer", lambda op, keyset, args, kwargs: word("fallback"))
    x = word("x", "CPU", "Tracer")
    assert f.call("f", x).text == "fallback"
    f.impl("f", "Tracer", lambda x: word("own"))
    assert f.call("f", x).text == "own"


def test_a_fallback_serves_a_representation(f, word):
    f.impl("f", "CPU", lambda x: word("cpu"))
    f.fallback("Sparse", lambda op, keyset, args, kwargs: word("dense"))
    assert f.call("f", word("x", "CPU", "Sparse")).text == "dense"


def test_a_fallback_may_be_fallthrough(f, word):
    f.impl("f", "CPU", lambda x: word("cpu"))
    f.fallback("Tracer", kf.fallthrough)
    assert f.call("f", word("x", "CPU", "Tracer")).text == "cpu"


def test_a_second_fallback_is_an_error(d, raises_saying):
    d.fallback("Tracer", lambda op, keyset, args, kwargs: None)
    with raises_saying(ValueError, "Tracer", "override="):
        d.fallback("Tracer", lambda op, keyset, args, kwargs: 1)


def test_a_fallback_of_the_process_is_taken_back(lib, ns, word, audit):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: word("cpu"), "CPU")
    op = kf.get_op(f"{ns}::f")
    handle = kf.fallback(audit, lambda op, keyset, args, kwargs: word(f"traced {op.name}"))
    try:
        with kf.include_keys(audit):
            assert op(word("x")).text == f"traced {ns}::f"
    finally:
        handle.remove()
    with kf.include_keys(audit):
        assert op(word("x")).text == "cpu"


def test_kernel_count_and_repr(f):
    assert repr(f) == "<Dispatcher(1 operators, 0 kernels)>"
    f.impl("f", "CPU", one)
    f.fallback("Tracer", lambda op, keyset, args, kwargs: None)
    assert f.kernel_count() == 2
    assert repr(f) == "<Dispatcher(1 operators, 2 kernels)>"
    assert "1 kernels" in repr(f.get_op("f"))


def test_a_fallback_that_cannot_be_called_is_refused(d):
    with pytest.raises(kf.RegistrationError, match=r"op, keyset, args, kwargs"):
        d.fallback("Tracer", lambda x: x)
    d.fallback("Tracer", lambda op, keyset, *rest: None).remove()


def test_methods_of_two_objects_are_two_kernels(d):
    class Plugin:
        def kernel(self, x):
            return x

    first, second = Plugin(), Plugin()
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", first.kernel)
    with pytest.raises(kf.RegistrationError, match="already has a kernel"):
        d.impl("f", "CPU", second.kernel)
    d.impl("f", "CPU", first.kernel)
    assert d.kernel_count() == 1


def test_each_handle_of_a_definition_knows_whether_it_is_active(d):
    first, second = (d.define("f(Tensor x) -> Tensor") for _ in range(2))
    assert first.remove()
    assert (first.active, second.active) == (False, True)
    assert "removed" in repr(first)
    assert "removed" not in repr(second)


def test_shadowing_shadows_also_on_one_line(d):
    d.define("f(Tensor x) -> Tensor")
    one, two = (d.impl("f", "CPU", lambda x, n=n: n, override="shadow") for n in range(2))
    assert two.remove()
    assert one.active
    assert len(d.ops.f.kernels) == 1


def test_statements_typed_at_a_prompt_are_no_reloads_of_each_other(d):
    d.define("f(Tensor x) -> Tensor")
    for source in ["d.impl('f', 'CPU', lambda x: 1)", "d.impl('f', 'CPU', lambda x: 2)"]:
        typed = compile(source, "<stdin>", "exec")
        if "1" in source:
            exec(typed, {"d": d})
        else:
            with pytest.raises(kf.RegistrationError, match="already has a kernel"):
                exec(typed, {"d": d})


def test_a_closed_dispatcher_lets_its_kernels_go(d):
    d.define("ns::f(Tensor x) -> Tensor")
    held = d.ops.ns.f.default
    d.impl("ns::f", "CPU", lambda x: d.call("ns::f", x))
    d.close()
    assert (d.operator_names(), d.kernel_count()) == ([], 0)
    with pytest.raises(kf.OperatorRemoved, match="ns::f"):
        held(kf.ones(1))
    with pytest.raises(AttributeError):
        _ = d.ops.ns
    with pytest.raises(ValueError, match="can't be closed"):
        kf._default_dispatcher.close()
