"""Kernels of installed packages: the entry points `keyfold.kernels`, loaded at first use."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf
from keyfold import _entry_points
from keyfold._cli import main
from keyfold._dispatch import _custom_op
from tests.helpers.paths import ROOT

DOUBLE = """
import keyfold as kf

@kf.custom_op("{ns}::double", mutates_args=())
def double(x: kf.Tensor) -> kf.Tensor:
    return x + x
"""


def environment(*places):
    """This process's environment with these folders ahead of the others on Python's path."""
    package = Path(kf.__file__).parents[1]
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(filter(None, [*map(str, places), str(package), *others]))
    return {**os.environ, "PYTHONPATH": path}


def run(code, *places):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(*places),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Site:
    """A folder on Python's path, with packages in it that look installed."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def add(self, name, points, *, version="1.0", **modules):
        """Adds a package: its entry points as lines, its modules as sources."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        text = "\n".join(["[console_scripts]", "tool = tool:main", "[keyfold.kernels]", *points])
        (info / "entry_points.txt").write_text(text)
        for module, source in modules.items():
            (self.folder / f"{module}.py").write_text(source)


@pytest.fixture
def site(tmp_path, monkeypatch, ns):
    """A folder for packages, of which nobody has asked yet. What they import is forgotten after."""
    modules, ops = set(sys.modules), set(kf._core._default_dispatcher().operator_names())
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(site.folder)
    monkeypatch.setattr(_entry_points, "_offers", None)
    yield site
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]
    for op in list(_custom_op._made.values()):
        if op.name not in ops:
            op.close()


@pytest.fixture
def offered(site, ns):
    """A package that offers `ns::double` by a module."""
    site.add("double-kernels", [f"{ns} = {ns}_kernels"], **{f"{ns}_kernels": DOUBLE.format(ns=ns)})
    return f"{ns}::double"


# The example package, as a user installs it.


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that examples/package is installed into."""
    # A copy: setuptools writes beside the sources.
    source = tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(ROOT / "examples" / "package", source)
    target = tmp_path_factory.mktemp("target")
    # Its requirements are installed: keyfold, NumPy, setuptools of the group `test`; no download.
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return target


def test_the_example_package_is_found_when_it_is_used(installed):
    assert run(
        """
import sys
import numpy as np
import keyfold as kf

assert "keyfold_shop" not in sys.modules
print(kf.ops.shop.discount(np.array([10.0, 20.0])))
assert "keyfold_shop.kernels" in sys.modules
stock = np.zeros(3)
kf.ops.shop.restock(stock, [0, 2, 2])
print(stock)
print(kf.grad(lambda x: kf.ops.shop.discount(x, 50.0).sum())(kf.ones(2)))
kf.opcheck("shop::discount", (kf.ones(2), 5.0))
kf.opcheck("shop::restock", (np.zeros(3), [1]))
""",
        installed,
    ) == ["[ 9. 18.]", "[1. 0. 2.]", "Tensor([0.5, 0.5])"]


def test_the_command_line_finds_the_example_package(installed):
    def keyfold(*words):
        done = subprocess.run(
            [sys.executable, "-m", "keyfold", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**environment(installed), "COLUMNS": "200"},
        )
        return done.stdout

    assert "shop::restock(Tensor(a!) stock, int[] items) -> ()" in keyfold("ops", "shop")
    assert "shop::discount" in keyfold("table", "shop::discount")
    assert "Python" in keyfold("explain", "shop::discount", "3:float64")
    assert "keyfold_shop.kernels (keyfold-shop 1.0): not loaded" in keyfold("doctor")
    assert "keyfold_shop.kernels (keyfold-shop 1.0): loaded" in keyfold("doctor", "--load")


# When packages are looked for, and when not.


def test_importing_keyfold_and_calling_look_at_no_package():
    run(
        """
import sys
import numpy as np
before = "importlib.metadata" in sys.modules
import keyfold as kf
kf.define("mine::f(Tensor x) -> Tensor")
kf.impl("mine::f", "CPU", lambda x: x)
kf.ops.mine.f(np.ones(2))
kf.ops.aten.add(np.ones(2), np.ones(2))
kf.get_kernel("mine::f", "CPU")
assert kf._entry_points._offers is None
assert ("importlib.metadata" in sys.modules) == before
"""
    )


def test_packages_are_listed_once(site, monkeypatch, ns):
    listed = []
    distributions = importlib.metadata.distributions

    def counted(**names):
        listed.append(names)
        return distributions(**names)

    monkeypatch.setattr(importlib.metadata, "distributions", counted)
    for name in (ns, f"{ns}x", "aten"):
        with pytest.raises(kf.UnknownOperator):
            _ = getattr(kf.ops, name).nothing
        with pytest.raises(kf.UnknownOperator):
            kf.get_op(f"{name}::nothing")
    assert len(listed) == 1


USES = {
    "get_op": lambda op: kf.get_op(op),
    "get_op with an overload": lambda op: kf.get_op(f"{op}.default"),
    "get_kernel": lambda op: kf.get_kernel(op, "CPU"),
    "call_direct": lambda op: kf.call_direct(op, "CPU", np.ones(2)),
    "redispatch": lambda op: kf.redispatch(op, kf.DispatchKeySet("CPU"), np.ones(2)),
    "explain": lambda op: kf.explain(op, np.ones(2)),
    "infer_meta": lambda op: kf.infer_meta(op, np.ones(2)),
    "opcheck": lambda op: kf.opcheck(op, (np.ones(2),)),
    "impl": lambda op: kf.impl(op, "CUDA", lambda x: x),
    "impl as a decorator": lambda op: kf.impl(op, "CUDA")(lambda x: x),
    "a library": lambda op: kf.Library(op.split("::")[0]).impl("double", lambda x: x, "CUDA"),
    "register_fake": lambda op: kf.register_fake(op, kf.empty_like, override="replace"),
    "register_autograd": lambda op: kf.register_autograd(op, lambda ctx, grad: grad),
    "register_autograd as a decorator": lambda op: kf.register_autograd(op)(lambda ctx, g: g),
    "register_vmap": lambda op: kf.register_vmap(op, lambda info, dims, x: (x, dims[0])),
    "register_vmap as a decorator": lambda op: kf.register_vmap(op)(lambda i, d, x: (x, d[0])),
    "register_autocast": lambda op: kf.register_autocast(op, "full"),
}


@pytest.mark.parametrize("use", USES)
def test_using_an_operators_name_loads_it(offered, use):
    USES[use](offered)
    assert kf.get_op(offered)(np.ones(1)).tolist() == [2.0]


def test_a_library_block_loads_what_it_adds_to(offered, ns):
    with kf.Library(ns) as library:
        library.define("triple(Tensor x) -> Tensor")
        library.impl("double", lambda x: x, "CUDA")
    assert kf.get_op(offered).has_kernel("CUDA")
    library.close()


def test_the_namespace_loads_it(offered, ns):
    assert dir(getattr(kf.ops, ns)) == ["double"]
    assert getattr(kf.ops, ns).double(np.ones(1)).tolist() == [2.0]


def test_an_unknown_operator_of_a_known_namespace_loads_it(offered, ns):
    with kf.Library(ns):
        pass
    handle = kf.define(f"{ns}::own(Tensor x) -> Tensor")
    assert dir(getattr(kf.ops, ns)) == ["own"]
    assert getattr(kf.ops, ns).double(np.ones(1)).tolist() == [2.0]
    handle.remove()


def test_an_operator_that_the_package_lacks_is_unknown(offered, ns):
    with pytest.raises(kf.UnknownOperator, match="did you mean"):
        _ = getattr(kf.ops, ns).doubel
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::nothing")


def test_defining_loads_nothing(offered, ns):
    handle = kf.define(f"{ns}::own(Tensor x) -> Tensor")
    assert _entry_points._offers is None
    handle.remove()


def test_an_isolated_dispatcher_has_nothing_of_packages(offered, ns, d):
    with pytest.raises(kf.UnknownOperator):
        getattr(d.ops, ns)
    with pytest.raises(kf.UnknownOperator):
        d.get_op(offered)
    with pytest.raises(kf.UnknownOperator):
        kf.register_fake(offered, kf.empty_like, dispatcher=d)
    assert _entry_points._offers is None


def test_a_kernels_own_error_about_a_name_loads_nothing_and_runs_once(offered, ns, lib):
    calls = []

    def kernel(x):
        calls.append(x)
        raise kf.UnknownOperator("mine")

    name = f"{lib.ns}::broken"
    lib.define("broken(Tensor x) -> Tensor")
    lib.impl("broken", kernel, "CPU")
    with pytest.raises(kf.UnknownOperator, match="mine"):
        kf.call_direct(name, "CPU", np.ones(1))
    assert len(calls) == 1
    assert _entry_points._offers is None


# Several packages, and failures.


def test_all_packages_of_a_namespace_are_loaded_in_the_order_of_their_names(site, ns):
    for name in ("b-kernels", "C-kernels", "a-kernels"):
        module = f"{ns}_{name[0].lower()}"
        source = f"import {ns}_log\n{ns}_log.names.append({name!r})\n"
        site.add(name, [f"{ns} = {module}"], **{module: source})
    (site.folder / f"{ns}_log.py").write_text("names = []\n")
    packages = kf.load_kernels(ns)
    assert sys.modules[f"{ns}_log"].names == ["a-kernels", "b-kernels", "C-kernels"]
    assert [p.distribution for p in packages] == ["a-kernels", "b-kernels", "C-kernels"]
    assert all(p.loaded and p.error is None for p in packages)


def test_a_package_that_fails_is_named_and_the_others_are_loaded(site, ns):
    site.add("a-broken", [f"{ns} = {ns}_a"], version="2.5", **{f"{ns}_a": "1 / 0"})
    site.add("b-good", [f"{ns} = {ns}_b"], **{f"{ns}_b": DOUBLE.format(ns=ns)})
    site.add("c-broken", [f"{ns} = {ns}_c"], **{f"{ns}_c": "import no_such_module_at_all"})
    with pytest.raises(kf.KernelLoadError) as raised:
        getattr(kf.ops, ns)
    message = str(raised.value)
    assert "a-broken 2.5" in message
    assert f"entry point {ns} = {ns}_a" in message
    assert "ZeroDivisionError: division by zero" in message
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert isinstance(raised.value, ImportError)
    # The other one that fails is in a note.
    assert "c-broken" in raised.value.__notes__[0]
    assert getattr(kf.ops, ns).double(np.ones(1)).tolist() == [2.0]


def test_a_package_that_failed_is_tried_again_at_the_next_use(site, ns):
    source = f"import {ns}_missing\n" + DOUBLE.format(ns=ns)
    site.add("fragile", [f"{ns} = {ns}_kernels"], **{f"{ns}_kernels": source})
    for _ in range(2):
        with pytest.raises(kf.KernelLoadError, match=f"No module named '{ns}_missing'"):
            kf.get_op(f"{ns}::double")
    [package] = [p for p in _entry_points.packages_offered() if p.namespace == ns]
    assert isinstance(package.error, ModuleNotFoundError)
    assert not package.loaded
    (site.folder / f"{ns}_missing.py").write_text("")
    importlib.invalidate_caches()
    assert kf.get_op(f"{ns}::double")(np.ones(1)).tolist() == [2.0]
    assert package.loaded
    assert package.error is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("not a module", "'not a module' is no entry point: module or module:function"),
        ("no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("{ns}_kernels:register", "has no attribute 'register'"),
        ("{ns}_kernels:table", "{ns}_kernels:table is {{}}, and no function"),
        ("{ns}_kernels:fails", "RuntimeError: no GPU here"),
    ],
)
def test_an_entry_point_that_means_nothing_is_named(site, ns, value, says):
    value, says = value.format(ns=ns), says.format(ns=ns)
    source = "table = {}\ndef fails():\n    raise RuntimeError('no GPU here')\n"
    site.add("odd", [f"{ns} = {value}"], **{f"{ns}_kernels": source})
    with pytest.raises(kf.KernelLoadError) as raised:
        kf.load_kernels(ns)
    assert says in str(raised.value)
    assert f"entry point {ns} = {value} of keyfold.kernels" in str(raised.value)


# Functions, cycles, threads.

REGISTER = """
import keyfold as kf
calls = []

class Kernels:
    @staticmethod
    def register():
        calls.append(1)
        {body}
        schema = "(Tensor x) -> Tensor"
        kf.custom_op("{ns}::double", lambda x: x + x, mutates_args=(), schema=schema)
"""


def test_a_function_is_called_once(site, ns):
    source = REGISTER.format(ns=ns, body="pass")
    point = f"{ns} = {ns}_kernels:Kernels.register [extra]"
    site.add("functional", [point], **{f"{ns}_kernels": source})
    assert getattr(kf.ops, ns).double(np.ones(1)).tolist() == [2.0]
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::other")
    kf.load_kernels()
    assert sys.modules[f"{ns}_kernels"].calls == [1]


ASKS = """
import keyfold as kf
for use in (lambda: kf.ops.{ns}, lambda: kf.get_op("{ns}::double")):
    try:
        use()
    except kf.UnknownOperator:
        pass
    else:
        raise AssertionError("it is there before it is defined")
"""


def test_a_module_may_ask_for_its_own_namespace_while_it_is_loaded(site, ns):
    source = ASKS.format(ns=ns) + DOUBLE.format(ns=ns) + f"assert kf.ops.{ns}.double.name\n"
    site.add("curious", [f"{ns} = {ns}_kernels"], **{f"{ns}_kernels": source})
    assert kf.get_op(f"{ns}::double")(np.ones(1)).tolist() == [2.0]
    [package] = kf.load_kernels(ns)
    assert package.loaded


def test_a_function_may_ask_for_its_own_namespace_while_it_runs(site, ns):
    body = ASKS.format(ns=ns).replace("\n", "\n        ")
    source = REGISTER.format(ns=ns, body=body)
    site.add("curious", [f"{ns} = {ns}_kernels:Kernels.register"], **{f"{ns}_kernels": source})
    assert kf.get_op(f"{ns}::double")(np.ones(1)).tolist() == [2.0]
    assert sys.modules[f"{ns}_kernels"].calls == [1]


def test_importing_the_module_oneself_is_as_good(offered, ns):
    importlib.import_module(f"{ns}_kernels")
    assert getattr(kf.ops, ns).double(np.ones(1)).tolist() == [2.0]
    [package] = kf.load_kernels(ns)
    assert package.loaded


@pytest.mark.parametrize("form", ["module", "function"])
def test_threads_wait_for_the_one_that_loads(site, ns, form):
    slow = "import time; time.sleep(0.2)"
    if form == "module":
        point, source = f"{ns} = {ns}_kernels", f"{slow}\n" + DOUBLE.format(ns=ns)
    else:
        point = f"{ns} = {ns}_kernels:Kernels.register"
        source = REGISTER.format(ns=ns, body=slow)
    site.add("slow", [point], **{f"{ns}_kernels": source})
    found, barrier = [], threading.Barrier(8)

    def use(number):
        barrier.wait()
        op = kf.get_op(f"{ns}::double") if number % 2 else getattr(kf.ops, ns).double
        found.append(op(np.ones(1)).item())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2.0] * 8
    assert getattr(sys.modules[f"{ns}_kernels"], "calls", [1]) == [1]


def test_a_thread_that_waits_too_long_says_so(site, ns, monkeypatch):
    body = f"import {ns}_gate as gate; gate.entered.set(); gate.leave.wait(60)"
    point = f"{ns} = {ns}_kernels:Kernels.register"
    modules = {
        f"{ns}_kernels": REGISTER.format(ns=ns, body=body),
        f"{ns}_gate": "import threading\nentered, leave = threading.Event(), threading.Event()\n",
    }
    site.add("stuck", [point], **modules)
    gate = importlib.import_module(f"{ns}_gate")
    monkeypatch.setattr(_entry_points, "_PATIENCE", 0.05)
    loader = threading.Thread(target=kf.load_kernels, args=(ns,))
    loader.start()
    assert gate.entered.wait(60)
    with pytest.raises(kf.KernelLoadError, match=r"another thread has been in .* for 0\.05 s"):
        kf.get_op(f"{ns}::double")
    gate.leave.set()
    loader.join()
    assert kf.get_op(f"{ns}::double")(np.ones(1)).tolist() == [2.0]


# Reading what is installed.


def test_load_kernels_finds_what_was_installed_since(site, ns):
    assert kf.load_kernels(ns) == []
    source = DOUBLE.format(ns=ns)
    site.add("later", [f"{ns} = {ns}_kernels"], **{f"{ns}_kernels": source})
    importlib.invalidate_caches()
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::double")
    [package] = kf.load_kernels(ns)
    assert str(package) == f"{ns} = {ns}_kernels (later 1.0)"
    assert kf.get_op(f"{ns}::double")(np.ones(1)).tolist() == [2.0]
    assert kf.load_kernels(ns) == [package]


def test_load_kernels_loads_the_named_namespace_alone(site, ns):
    for number in (1, 2):
        module = f"{ns}_{number}"
        site.add(module, [f"{ns}{number} = {module}"], **{module: ""})
    [package] = kf.load_kernels(f"{ns}2")
    assert package.loaded
    assert f"{ns}_1" not in sys.modules


def test_the_first_version_on_the_path_counts(site, tmp_path, monkeypatch, ns):
    source = DOUBLE.format(ns=ns)
    site.add("twice", [f"{ns} = {ns}_old"], **{f"{ns}_old": source})
    newer = Site(tmp_path / "newer")
    newer.add("Twice", [f"{ns} = {ns}_new"], version="2.0", **{f"{ns}_new": source})
    monkeypatch.syspath_prepend(newer.folder)
    assert [p.version for p in kf.load_kernels(ns)] == ["2.0"]


def test_a_package_whose_newer_version_offers_nothing_stays(site, tmp_path, monkeypatch, ns):
    site.add("once", [f"{ns} = {ns}_old"], **{f"{ns}_old": DOUBLE.format(ns=ns)})
    newer = Site(tmp_path / "newer")
    newer.add("once", [], version="2.0")
    monkeypatch.syspath_prepend(newer.folder)
    assert kf.load_kernels(ns) == []


def test_a_damaged_package_is_named_and_does_not_stop_the_others(offered, site, ns, capsys):
    site.add("damaged", ["this line is no entry point"])
    assert kf.get_op(offered)(np.ones(1)).tolist() == [2.0]
    [problem] = _entry_points.unreadable()
    assert "damaged-1.0.dist-info" in problem
    assert main(["doctor"]) == 0
    assert "unreadable" in capsys.readouterr().out


def test_the_doctor_lists_packages_and_what_became_of_them(site, ns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    site.add("a-broken", [f"{ns} = {ns}_a"], **{f"{ns}_a": "1 / 0"})
    site.add("b-good", [f"{ns} = {ns}_b"], **{f"{ns}_b": DOUBLE.format(ns=ns)})
    assert main(["doctor"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{ns}_a (a-broken 1.0): not loaded: its first use does that" in text
    assert f"{ns}_a" not in sys.modules
    assert main(["doctor", "--load"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{ns}_a (a-broken 1.0): can't be loaded: ZeroDivisionError: division by zero" in text
    assert f"{ns}_b (b-good 1.0): loaded" in text


def test_the_doctor_says_that_no_package_offers_kernels(site, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: iter(()))
    assert main(["doctor"]) == 0
    assert "no installed package has an entry point of the group keyfold.kernels" in (
        capsys.readouterr().out
    )
