"""Random graphs of 1 to 6 kinds and their gradients: against references, and on a late device.

Each kind is an operation, or some that read a result twice or join two branches.

The references are NumPy, SciPy and PyTorch in float64; the late device has the CPU's bits.
`KEYFOLD_GRAPHS=1000 pytest -s tests/cudnn/test_random_graphs.py` takes as many for each, and prints
what they had.
"""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from keyfold.testing import delayed_device
from tests.helpers.graph_kinds import KINDS
from tests.helpers.graph_references import MODULES, is_installed
from tests.helpers.random_graphs import Drawn, counts

pytestmark = pytest.mark.one_python

EXAMPLES = int(os.environ.get("KEYFOLD_GRAPHS", "60"))
REFERENCES = [
    pytest.param(
        reference,
        id=reference.name,
        marks=pytest.mark.skipif(
            not is_installed(reference), reason=f"{reference.name} isn't installed"
        ),
    )
    for reference in MODULES
]
each_reference = pytest.mark.parametrize("reference", REFERENCES)
graphs = given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1)
)


@pytest.fixture(scope="module")
def late():
    with delayed_device("late", devices=1) as handle:
        yield handle


@pytest.fixture(scope="module", autouse=True)
def _report():
    yield
    print(f"\nrandom graphs: {dict(counts)}")


def bits(out):
    return {tensor.uid: (array.dtype, array.tobytes()) for tensor, array in out.items()}


@each_reference
@settings(max_examples=EXAMPLES)
@graphs
def test_random_graphs_and_their_gradients(reference, kinds, seed):
    drawn = Drawn(kinds, seed)
    out = drawn.run("cpu", "float64")
    assert max(drawn.errors(out, reference())) < 1e-5


@settings(max_examples=EXAMPLES)
@graphs
def test_a_device_that_works_late_has_the_same_bits(late, kinds, seed):
    drawn = Drawn(kinds, seed, io=("float32", "float16")[seed % 2])
    for precision in ("spec", "float64"):
        there = drawn.run(late.devices[0], precision)
        assert bits(drawn.run("cpu", precision)) == bits(there)
    counts["on the late device"] += 1


@pytest.mark.parametrize("mistake", ["reads_early", "frees_early"])
def test_a_mistake_of_the_device_is_found(late, mistake):
    """A copy is taken, or memory is given back, before the operations in front of it ran."""
    late.plant(mistake)
    try:
        found = 0
        for seed in range(10):
            drawn = Drawn([KINDS[seed], KINDS[(seed + 3) % 12], KINDS[(seed + 7) % 12]], seed)
            here = bits(drawn.run("cpu", "spec"))
            try:
                found += here != bits(drawn.run(late.devices[0], "spec"))
            except kf.Error:  # A number that was read too early may be one that no operation takes.
                found += 1
        assert found > 0
    finally:
        late.plant(None)


@each_reference
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_compared_in_float32_and_in_halves(reference, kind):
    for seed in range(3):
        drawn = Drawn([kind], seed)
        assert max(drawn.errors(drawn.run("cpu", "spec"), reference())) < 1e-3
        drawn = Drawn([kind], seed, io="float16")
        assert max(drawn.errors(drawn.run("cpu", "spec"), reference())) < 1e-2


@each_reference
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_planted_error_is_found(reference, kind):
    """One element of the result, or of one gradient, is off by 0.01."""
    for seed in range(2):
        drawn = Drawn([kind], seed)
        out = drawn.run("cpu", "float64")
        leaf, gradient = drawn.dag.gradients[seed % len(drawn.dag.gradients)]
        for place, tensor in enumerate((drawn.y, gradient)):
            wrong = {key: np.array(array, order="C") for key, array in out.items()}
            wrong[tensor].reshape(-1)[-1] += 0.01
            errors = drawn.errors(wrong, reference())
            assert errors[place] > 1e-5, (kind, seed, leaf)
