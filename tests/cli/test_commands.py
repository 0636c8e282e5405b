"""The command line, `python -m keyfold ...`."""

import importlib.metadata
import re
import subprocess
import sys

import numpy as np
import pytest

import keyfold as kf
from keyfold._cli import _doctor, main
from keyfold._cli._arguments import ArgumentFormError, parse_argument, parse_arguments
from keyfold._show._text import shorten


def keyfold(capsys, *words):
    """Run a command in this process: its exit code, output and error output."""
    try:
        code = main(words)
    except SystemExit as stop:  # argparse
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "keyfold", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"keyfold {importlib.metadata.version('keyfold')}\n"


def test_a_closed_pipe_ends_the_output_without_a_traceback():
    command = f"{sys.executable} -m keyfold ops | head -n 2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_every_command_has_help(capsys):
    code, out, _ = keyfold(capsys, "--help")
    assert code == 0
    for command in ("demo", "doctor", "ops", "table", "explain", "conformance", "cudnn"):
        assert re.search(rf"^    {command}(?:  |$)", out, re.MULTILINE)
        code, help_text, _ = keyfold(capsys, command, "--help")
        assert code == 0
        assert f"python -m keyfold {command}" in help_text


@pytest.mark.parametrize(
    "words", [(), ("bench",), ("demo", "--epochs", "0"), ("demo", "--seed=-1")]
)
def test_wrong_command_lines_exit_with_2(capsys, words):
    code, out, err = keyfold(capsys, *words)
    assert (code, out) == (2, "")
    assert "error:" in err


def test_doctor_reports_versions_and_gpu(capsys):
    code, out, err = keyfold(capsys, "doctor")
    assert (code, err) == (0, "")
    for name, value in (
        ("keyfold", importlib.metadata.version("keyfold")),
        ("NumPy", np.__version__),
        ("Python", ".".join(map(str, sys.version_info[:3]))),
    ):
        assert re.search(rf"^  {name} +{re.escape(value)}", out, re.MULTILINE)
    for name in ("build", "features", "threads", "driver", "libcuda", "CUDA", "libcudnn"):
        assert re.search(rf"^  {name} +\S", out, re.MULTILINE), name


def test_doctor_names_driver_and_model_of_a_gpu_that_is_there(tmp_path):
    proc = tmp_path / "proc/driver/nvidia"
    (proc / "gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "dev/nvidiactl").touch()
    (proc / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    (proc / "gpus/0000:01:00.0/information").write_text("Model: \t NVIDIA H100\nIRQ: 1\n")
    rows = dict(_doctor._gpu(tmp_path))
    assert rows["driver"] == "580.65.06"
    assert rows["GPUs"] == "NVIDIA H100"


def test_doctor_says_where_it_looked_for_a_gpu_in_vain(tmp_path):
    rows = dict(_doctor._gpu(tmp_path))
    assert rows["driver"].startswith(f"not found: no {tmp_path}/proc/driver/nvidia/version")
    assert rows["GPUs"] == f"none: no {tmp_path}/dev/nvidia0"


def test_doctor_imports_nothing_heavy():
    code = (
        "import sys; from keyfold._cli import main; main(['doctor']); "
        "sys.exit(bool({'torch', 'cupy', 'jax', 'cuda'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


def test_ops_lists_schemas_and_keys(capsys):
    code, out, _ = keyfold(capsys, "ops", "aten")
    assert code == 0
    line = r"^  aten::add\(Tensor self, Tensor other\) -> Tensor +Autocast, Autograd, Vmap$"
    assert re.search(line, out, re.MULTILINE)
    assert re.search(r"^  aten::add\.Scalar\(", out, re.MULTILINE)


def test_ops_leaves_private_operators_out_but_for_those_named(capsys):
    code, out, _ = keyfold(capsys, "ops", "keyfold")
    assert code == 0
    assert re.search(r"^keyfold: \d+ operators$", out, re.MULTILINE)
    assert "keyfold::elementwise(" in out
    assert "vmap" not in out
    code, out, _ = keyfold(capsys, "ops", "keyfold::_vmap_enter")
    assert code == 0
    assert "keyfold::_vmap_enter(Tensor x, int dim, int" in out
    assert re.search(r" CompositeExplicitAutograd$", out, re.MULTILINE)
    assert "CompositeExplicitAutograd" in str(kf.explain("keyfold::_vmap_enter", np.ones(2), 0, 0))


def test_ops_of_an_unknown_namespace_names_those_there_are(capsys):
    code, out, err = keyfold(capsys, "ops", "atan")
    assert (code, out) == (2, "")
    assert "'atan'" in err
    assert "aten" in err


def test_table_shows_key_kernel_and_place(capsys):
    code, out, _ = keyfold(capsys, "table", "aten::add")
    assert code == 0
    assert out.startswith("aten::add(Tensor self, Tensor other) -> Tensor\n")
    assert re.search(r"^  Meta, CPU +built in$", out, re.MULTILINE)


def test_table_of_an_imported_module_shows_fallbacks_when_asked(tmp_path):
    (tmp_path / "my_operators.py").write_text(
        "import keyfold as kf\n"
        "kf.define('mine::same(Tensor x) -> Tensor')\n"
        "@kf.impl('mine::same', 'CPU')\n"
        "def same(x): return x\n"
        "def trace(op, keyset, args, kwargs): return args[0]\n"
        "kf.fallback('Nested', trace)\n"
    )
    command = [sys.executable, "-m", "keyfold", "table", "-i", "my_operators", "mine::same"]

    def lines(*options):
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout.splitlines()

    assert [line.split() for line in lines()] == [
        ["mine::same(Tensor", "x)", "->", "Tensor"],
        ["key", "kernel", "where"],
        ["---", "------", "-----------------"],
        ["CPU", "same", "my_operators.py:3"],
    ]
    assert ["Nested", "trace", "my_operators.py:5", "fallback"] in [
        line.split() for line in lines("--fallbacks")
    ]


def test_a_module_that_is_not_there_is_one_line(capsys):
    code, out, err = keyfold(capsys, "ops", "--import", "no_such_module")
    assert (code, out) == (2, "")
    assert err == "keyfold: --import no_such_module: no module named 'no_such_module'\n"


@pytest.mark.parametrize("command", ["table", "explain"])
def test_an_unknown_operator_is_one_line_with_the_nearest_names(capsys, command):
    code, out, err = keyfold(capsys, command, "aten::ad")
    assert (code, out) == (2, "")
    assert err.startswith("keyfold: no operator named aten::ad; did you mean")
    assert "aten::add" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["table", "explain"])
def test_an_operator_without_its_namespace_is_offered_with_it(capsys, command):
    code, out, err = keyfold(capsys, command, "log_softmax")
    assert (code, out) == (2, "")
    assert err == "keyfold: no operator named log_softmax; did you mean aten::log_softmax?\n"


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    code, out, err = keyfold(capsys, "tabel")
    assert (code, out) == (2, "")
    assert err.endswith(
        ": error: no command 'tabel'; did you mean table? commands are demo, doctor, ops, table, "
        "explain, conformance, cudnn\n"
    )


def test_no_command_shows_the_help(capsys):
    code, out, err = keyfold(capsys)
    assert (code, out) == (2, "")
    assert "say what a call would do, without running it" in err
    assert err.endswith("doctor\n")


def test_ops_of_one_operator_lists_its_overloads(capsys):
    code, out, _ = keyfold(capsys, "ops", "aten::add")
    assert code == 0
    assert "aten::add.Scalar(" in out
    assert "aten::sub" not in out


def test_explain_chooses_the_overload_and_the_meta_kernel(capsys):
    words = ("explain", "aten::sum", "3x4:float32:meta", "[0]", "keepdim=True")
    code, out, _ = keyfold(capsys, *words)
    assert code == 0
    assert out.startswith("aten::sum.dim(")
    assert re.search(r"^  chosen key +Meta$", out, re.MULTILINE)


def test_explain_takes_local_keys(capsys):
    words = ("explain", "aten::neg", "3:float64", "--include", "Autocast")
    code, out, _ = keyfold(capsys, *words)
    assert code == 0
    assert re.search(r"^  locally included +Autocast$", out, re.MULTILINE)
    code, out, _ = keyfold(capsys, *words, "--exclude", "Autocast")
    assert re.search(r"^  locally excluded +Autocast$", out, re.MULTILINE)


def test_explain_of_a_call_that_would_fail_explains_that(capsys):
    code, out, err = keyfold(capsys, "explain", "aten::add", "3:float32", "3:float32:meta")
    assert (code, err) == (1, "")
    assert "different devices" in out
    code, out, err = keyfold(
        capsys, "explain", "aten::masked_select", "2:float32:meta", "2:bool:meta"
    )
    assert (code, err) == (1, "")
    assert re.search(r"^  error +.*no kernel", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("aten::add", "3:float32"), "missing 1 required positional argument: 'other'"),
        (("aten::add", "3x4", "2"), "'3x4' is no argument"),
        (("aten::add", "3x4:float99", "2"), "float99"),
        (("aten::add", "3x4:float32:tpu", "2"), "tpu"),
        (("aten::sum", "dim=0", "3:float32"), "'3:float32' must come before dim="),
        (("aten::sum", "3:float32", "dim=0", "dim=1"), "'dim' is given twice"),
        (("aten::add", "3:float32", "1", "--include", "Profler"), "Profiler"),
    ],
)
def test_wrong_arguments_of_explain_are_named_without_a_traceback(capsys, words, message):
    code, out, err = keyfold(capsys, "explain", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("keyfold: ")


def test_argument_forms():
    assert parse_argument("2") == 2
    assert parse_argument("-0.5") == -0.5
    assert parse_argument("None") is None
    assert parse_argument("[1, 2]") == [1, 2]
    assert parse_argument("sum") == "sum"
    assert parse_argument("'a b'") == "a b"
    assert parse_argument("cuda:0") == "cuda:0"
    array = parse_argument("3x4:float32:meta")
    assert tuple(array.shape) == (3, 4)
    assert array.device == "meta"
    assert tuple(parse_argument("():int64").shape) == ()
    first, nothing = parse_argument("[2:int64, None]")
    assert tuple(first.shape) == (2,)
    assert nothing is None
    args, kwargs = parse_arguments(["1", "x=3", "y='z'"])
    assert (args, kwargs) == ([1], {"x": 3, "y": "z"})


@pytest.mark.parametrize("word", ["", "3x4", "3x:float32", "1 +", "[1", "a b"])
def test_words_that_are_no_argument_are_refused(word):
    with pytest.raises(ArgumentFormError, match="is no argument"):
        parse_argument(word)


def test_file_names_are_shortened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shorten(f"a.b.f (Python, {tmp_path}/x.py:1)") == "f (Python, x.py:1)"
    assert shorten("f (Python, /usr/lib/site-packages/x/y.py:1)") == "f (Python, x/y.py:1)"
    assert shorten("f (C, /tmp/tmpab_12/libf.so)") == "f (C, libf.so)"
