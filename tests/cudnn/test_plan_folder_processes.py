"""The folder of plans, shared by processes that write at once and are killed while they do."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cudnn.planning import NOT_KEPT, READ, UNUSED, build, product, run, start, wait_for

pytestmark = pytest.mark.one_python


def test_two_processes_write_one_entry_at_once(stand_in, folder):
    stand_in("plan")
    # Both are told the round, forget the plan and write it.
    code = """
    for line in sys.stdin:
        for size in (8, 16, 32, 64):
            steps = build(product(size)).steps
            assert steps[-1] == "a stand-in's plan", steps
            assert not any(UNUSED in step or NOT_KEPT in step for step in steps), steps
        print(line, end="", flush=True)
    """
    workers = [start(code, folder, stand_in=True, STAND_IN_BYTES="300000") for _ in range(2)]
    try:
        for number in range(20):
            for worker in workers:
                worker.stdin.write(f"{number}\n")
                worker.stdin.flush()
            for worker in workers:
                line = worker.stdout.readline()
                assert line == f"{number}\n", worker.stderr.read()
            files = list(folder.iterdir())
            assert sorted(path.suffix for path in files) == [".json"] * 4
            for path in files:
                assert json.loads(json.loads(path.read_text())["plan"])["cudnn"] == "9.27.0"
                path.unlink()
    finally:
        for worker in workers:
            _, errors = worker.communicate(timeout=60)
            assert worker.returncode == 0, errors


def is_half(folder):
    return any(name.endswith(".partial") for name in os.listdir(folder))


def test_processes_killed_while_they_write_leave_a_folder_that_is_used(stand_in, folder):
    stand_in("plan")
    # Each line starts a process that writes plans until it is killed.
    code = """
    import os
    from pathlib import Path
    for line in sys.stdin:
        writer = os.fork()
        while writer == 0:
            for size in (8, 16, 32, 64):
                build(product(size))
                for path in Path(folder).glob("*.json"):
                    path.unlink()
        print(writer, flush=True)
        os.waitpid(writer, 0)
    """
    rng = random.Random(3)
    folder.mkdir()
    halves = 0
    forks = start(code, folder, stand_in=True, STAND_IN_BYTES="300000")
    try:
        for number in range(30):
            forks.stdin.write("\n")
            forks.stdin.flush()
            writer = int(forks.stdout.readline())
            wait_for(lambda: os.listdir(folder))
            if number % 2:
                time.sleep(rng.uniform(0, 0.1))
            else:
                # The file is there from the first byte on, and has its name from the last one on.
                wait_for(lambda: is_half(folder), pause=0)
            os.kill(writer, signal.SIGKILL)
            wait_for(lambda process=writer: not Path(f"/proc/{process}").exists())
            halves += is_half(folder)
            for size in (8, 16, 32, 64):
                steps = build(product(size)).steps
                assert steps[-1] == "a stand-in's plan"
                assert not any(UNUSED in step or NOT_KEPT in step for step in steps), steps
                assert build(product(size)).steps[0] == f"{READ} {folder}"
            for path in folder.iterdir():
                path.unlink()
    finally:
        _, errors = forks.communicate(timeout=60)
        assert not errors, errors
    assert forks.returncode == 0
    assert halves, "no process was killed while it wrote"


@pytest.mark.usefixtures("libcudnn")
def test_plans_of_libcudnn_are_read_by_another_process_without_a_compilation(folder):
    first = build()
    code = """
    seen = set()
    plan = build(progress=lambda done, total, what: seen.add(what))
    print(plan.steps, plan.engine, plan.workspace_bytes)
    assert not any("compile" in step or "heuristics" in step for step in seen), seen
    """
    expected = f"{[f'{READ} {folder}', *first.steps]} {first.engine} {first.workspace_bytes}\n"
    assert run(code, folder) == expected
