"""Memory of this process while plans are made; benches/bench_plans.py makes 10,000."""

import pytest

from tests.cudnn.planning import run

pytestmark = pytest.mark.one_python

BUILDS = """
import gc, os
from pathlib import Path

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def builds(count):
    for _ in range(count):
        steps = build().steps
    return steps

builds(50)
before = resident()
steps = builds(300)
print(resident() - before, steps[0], sep="\\n")
"""


def test_300_plans_of_a_stand_in_leave_the_memory_as_it_was(tmp_path):
    library = tmp_path / "libcudnn.so.9"
    library.write_text("the stand-in loads none")
    more = {"KEYFOLD_CUDNN_LIBRARY": str(library), "TMPDIR": str(tmp_path)}
    # The plans have 100 KB each: what is kept of each would be 30 MB.
    told = run(BUILDS, stand_in=True, STAND_IN_BYTES="100000", **more).splitlines()
    assert told[1] == "a stand-in's plan"
    assert int(told[0]) < 5e6


@pytest.mark.usefixtures("libcudnn")
def test_300_plans_of_libcudnn_read_from_a_folder_leave_the_memory_as_it_was(tmp_path):
    told = run(BUILDS, tmp_path / "plans").splitlines()
    assert told[1].startswith("read from the plans in")
    assert int(told[0]) < 5e6
