"""The helper process killed, stopped and misused: this one is unharmed, and the next plan works."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import keyfold as kf
from tests.cudnn.planning import (
    CARD,
    READ,
    build,
    children,
    ended,
    idle,
    product,
    run,
    started,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("no_folder")

# The steps of a helper with the real libcudnn, as a build's progress is told.
STEPS = ("load libcudnn", "read the graph", "lower the graph", "ask cuDNN", "compile engine")


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C raises, also where whoever started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def breaking(step, number):
    """A progress that sends a signal to the busy helper once, at a step.

    Helpers that were there before it was made, and aren't of the present options, are left alone.
    """
    others = children() - set(kf._core._cudnn_helpers(kf.cudnn._library.base())[2])
    done = []

    def progress(_done, _total, what):
        if what.startswith(step) and not done:
            done.extend(children() - others)
            for process in done:
                os.kill(process, number)

    progress.done = done
    return progress


def broken(step, number):
    """The helper that a signal was sent to at a step, and what the build's error says."""
    for _ in range(5):
        progress = breaking(step, number)
        try:
            build(progress=progress)
        except kf.LibraryLoadError as error:
            (process,) = progress.done
            return process, str(error)
        # On a busy machine it may be quicker than the signal.
    pytest.fail(f"in 5 builds no signal reached the helper at {step!r}")


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("step", STEPS[1:])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_helper_that_dies_at_a_step_is_an_error_that_names_it(step, number):
    process, text = broken(step, number)
    assert f"died by signal {number.value} while it was doing this: " in text
    assert "This process is unharmed, and the next plan starts another helper" in text
    assert build().engine == "cuDNN engine 7"
    # It was reaped.
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_helper_that_dies_while_it_loads_is_an_error_and_the_next_one_works(number, patience):
    patience(150_000 + number.value)
    others = children()
    killed = []

    def progress(_done, _total, what):
        if not killed and (new := children() - others):
            assert what == "load libcudnn"
            killed.extend(new)
            os.kill(killed[0], number)

    with pytest.raises(kf.LibraryLoadError, match=rf"signal {number.value} .*load libcudnn"):
        build(progress=progress)
    assert ended(killed[0])
    assert build().engine == "cuDNN engine 7"


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_helper_that_died_while_it_was_idle_is_replaced_without_an_error(number):
    build()
    before, count = idle(), started()
    for process in before:
        os.kill(process, number)
        # Until its last thread has ended, and without reaping it.
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert build().engine == "cuDNN engine 7"
    assert started() == count + 1
    assert not any(Path(f"/proc/{process}").exists() for process in before)


@pytest.mark.usefixtures("libcudnn")
def test_a_helper_that_is_interrupted_while_it_is_idle_goes_on():
    # Ctrl-C in a terminal reaches all processes of the session.
    build()
    before = idle()
    for process in before:
        os.kill(process, signal.SIGINT)
    build()
    assert idle() == before


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("step", ["read the graph", "compile engine"])
def test_a_helper_that_is_stopped_is_ended_and_the_error_says_what_it_did(step, patience):
    build()
    pool = idle()
    patience(1_500)
    build()
    process, text = broken(step, signal.SIGSTOP)
    assert "said nothing for 1.5 s and was ended; it was doing this: " in text
    # Messages from before it was stopped are read first.
    assert text.partition("doing this: ")[2].startswith(STEPS[1:])
    assert not Path(f"/proc/{process}").exists()
    assert build().engine == "cuDNN engine 7"
    patience(180_000)
    assert idle() == pool


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("at_once", "ended with code 3 while .*load libcudnn; its last words: no room in the life"),
        ("garbage", "wrote what is no message, and was ended while .*load libcudnn"),
        ("huge", "wrote what is no message, and was ended"),
        ("half", "ended with code 0 while .*load libcudnn"),
        ("no_json", "wrote what is no message, and was ended"),
        ("other_json", "wrote what is no message, and was ended"),
        ("answers_before_it_is_asked", "answered Reloaded to another question"),
        ("closes", "wrote what is no message, and was ended while .*read the graph"),
        ("nonsense", "wrote what is no message, and was ended while .*read the graph"),
        ("another_answer", "answered Reloaded to another question"),
        ("ready_twice", "answered Ready to another question"),
        ("a_plan_of_nothing", "wrote what is no message, and was ended while .*read the graph"),
        ("crashes", "died by signal 11 while .*read the graph"),
        ("says_nothing", "said nothing for 1 s and was ended; it was doing this: load libcudnn"),
        ("answers_nothing", "said nothing for 1 s and was ended; it was doing this: read the"),
        ("never_reads", "said nothing for 1 s and was ended; it was doing this: read the graph"),
        ("promises", "said nothing for 1 s and was ended; it was doing this: load libcudnn"),
    ],
)
def test_a_program_that_is_no_helper_is_an_error(stand_in, patience, how, reason):
    before = children()
    patience(1_000)
    stand_in(how)
    for _ in range(2):
        with pytest.raises(kf.LibraryLoadError, match=reason):
            build()
    assert children() == before
    # In one process with the right one.
    patience(30_000)
    stand_in("plan")
    assert build().steps == ["a stand-in's plan"]


def chain():
    """A graph whose request is longer than a pipe holds."""
    g = kf.cudnn.Graph(io_data_type="float32")
    x = g.tensor(dim=[4])
    for _ in range(400):
        x = g.relu(x)
    x.set_output(True)
    return g


@pytest.mark.one_python
def test_a_long_request_to_a_program_that_never_reads_ends_with_patience(stand_in, patience):
    patience(1_000)
    stand_in("never_reads")
    with pytest.raises(kf.LibraryLoadError, match=r"said nothing for 1 s and was ended"):
        build(chain())


def test_an_interrupt_ends_a_long_request_to_a_program_that_never_reads(stand_in):
    stand_in("never_reads")
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        build(chain())
    timer.join()


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
def test_a_helper_that_is_stopped_while_a_kept_plan_is_sent_is_ended(folder, patience):
    patience(1_500)
    build()
    (process,) = idle()
    os.kill(process, signal.SIGSTOP)
    steps = build().steps
    assert "said nothing for 1.5 s and was ended" in steps[0]
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.usefixtures("libcudnn")
def test_no_folder_of_a_shim_is_left(tmp_path):
    code = """
    build()
    os.kill(idle()[-1], 9)
    try:
        build()
    except kf.LibraryLoadError:
        build()
    print(*idle())
    """
    assert run(code, TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_helper_that_cannot_be_started_is_an_error(stand_in, helper, tmp_path):
    stand_in("plan")
    helper(tmp_path / "not here")
    with pytest.raises(kf.LibraryLoadError, match=r"not here can't be started: No such file"):
        build()
    (tmp_path / "text").write_text("no program")
    helper(tmp_path / "text")
    with pytest.raises(kf.LibraryLoadError, match=r"text can't be started: Permission denied"):
        build()


def test_a_python_without_a_program_of_its_own_says_so(stand_in, monkeypatch, tmp_path):
    library = tmp_path / "libcudnn.so.9"
    library.write_text("")
    monkeypatch.setenv("KEYFOLD_CUDNN_LIBRARY", str(library))
    monkeypatch.setattr(kf.cudnn._library, "packages", lambda: [str(tmp_path)])
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(kf.LibraryLoadError, match=r"no program \(sys.executable\) that a helper"):
        build()
    assert product().build().engine == "reference"


def test_a_folder_of_temporary_files_that_is_not_there_is_an_error(stand_in, monkeypatch, tmp_path):
    stand_in("plan")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(kf.LibraryLoadError, match=r"shim of libcuda can't be written to .*/gone: "):
        build()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert build().steps == ["a stand-in's plan"]


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
def test_a_helper_without_memory_is_an_error(helper, tmp_path):
    usual = kf.cudnn._library.base()["helper"]
    refused = []
    for limit in (20, 100, 250, 300, 350):
        script = tmp_path / f"bounded-{limit}"
        script.write_text(f'#!/bin/sh\nulimit -v {limit * 1000}\nexec "$@"\n')
        script.chmod(0o755)
        helper(script, *usual)
        try:
            build()
        except (kf.LibraryLoadError, kf.OutOfMemory) as error:
            refused.append((limit, str(error)))
    assert len(refused) >= 2, refused
    helper(*usual)
    assert build().engine == "cuDNN engine 7"


class Stopped(Exception):
    pass


@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize("step", STEPS[1:])
def test_what_progress_raises_cancels_and_the_next_build_works(step):
    build()

    def progress(_done, _total, what):
        if what.startswith(step):
            raise Stopped(what)

    with pytest.raises(Stopped, match=step):
        build(progress=progress)
    assert build().engine == "cuDNN engine 7"


@pytest.mark.parametrize("how", ["says_nothing", "answers_nothing", "promises"])
def test_an_interrupt_ends_the_wait_for_a_helper(stand_in, how):
    # Patience is three minutes here: the test would end by its own limit of time.
    before = children()
    stand_in(how)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        build()
    timer.join()
    assert children() == before


@pytest.mark.usefixtures("libcudnn")
def test_eight_threads_plan_forty_graphs():
    kf.cudnn.plan_cache.clear()
    graphs = [product(8 * (1 + at % 20)) for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda graph: graph.build(device=CARD), graphs))
    assert [plan.signature for plan in plans] == [graph.signature() for graph in graphs]
    assert all(plan.engine.startswith("cuDNN engine ") for plan in plans)
    assert len(idle()) <= kf.cudnn._library._PROCESSES


def test_threads_wait_for_few_helpers_and_faults_are_those_of_one_thread(stand_in):
    stand_in("crashes")
    graphs = [product(8 * (1 + at)) for at in range(16)]
    kf.cudnn.plan_cache.clear()

    def one(graph):
        try:
            graph.build(device=CARD)
        except kf.LibraryLoadError as error:
            return "died by signal 11" in str(error)
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, graphs))


@pytest.mark.usefixtures("libcudnn")
def test_a_fork_has_helpers_of_its_own_and_the_parent_keeps_its():
    code = """
    import os
    build()
    before = idle()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            engine = build(product(32)).engine
            status = 0 if engine and not set(idle()) & set(before) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    build(product(16))
    assert idle() == before
    print("as before")
    """
    assert run(code) == "as before\n"


@pytest.mark.usefixtures("libcudnn")
def test_no_fake_libcuda_and_no_libcudnn_is_in_this_process():
    build()
    mine = Path("/proc/self/maps").read_text()
    theirs = Path(f"/proc/{idle()[-1]}/maps").read_text()
    for name in ("keyfold-cudnn-", "libcudnn", "libcuda.so"):
        assert name not in mine
    assert "libcudnn_graph" in theirs


@pytest.mark.usefixtures("libcudnn")
def test_helpers_end_with_the_process_that_started_them():
    code = "build(); print(*idle(), flush=True); sys.stdin.read()"
    processes = [int(process) for process in run(code).split()]
    assert processes
    wait_for(lambda: all(ended(process) for process in processes))


@pytest.mark.one_python
@pytest.mark.usefixtures("libcudnn")
def test_helpers_are_killed_at_any_moment_and_this_process_goes_on(folder):
    # The folder of plans makes the builds in between short.
    build()
    faults, said, others = 0, [], children() - set(idle())
    for number in range(8):
        killed = children() - others
        for process in killed:
            os.kill(process, (signal.SIGKILL, signal.SIGSEGV)[number % 2])
        faults += len(killed)
        try:
            said.append(build().steps[0])
        except kf.LibraryLoadError as error:
            said.append(str(error))
    assert faults >= 8
    known = (READ, "the kept plan isn't used: ", "the helper process that plans with cuDNN died")
    assert all(text.startswith(known) for text in said), said
    assert build().steps[0] == f"{READ} {folder}"
