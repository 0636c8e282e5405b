"""Random cuDNN graphs on pocl with their gradients, against each reference that is installed."""

from collections import Counter

import pytest

import keyfold as kf
from tests.helpers.graph_kinds import KINDS
from tests.helpers.graph_references import MODULES, is_installed
from tests.helpers.random_graphs import Drawn

pytestmark = pytest.mark.one_python

REFERENCES = [reference for reference in MODULES if is_installed(reference)]
ran = Counter()


@pytest.fixture(scope="module", autouse=True)
def _plugin(pocl, opencl_library):
    with kf.load_plugin(opencl_library):
        yield
    print(f"\nrandom graphs on OpenCL: {dict(ran)}")


def check(kinds, seed):
    """Runs a graph and compares it with the references; an operator that is lacking is named."""
    drawn = Drawn(kinds, seed)
    try:
        out = drawn.run("opencl", "spec")
    except kf.NotSupported as refusal:
        if "::" not in str(refusal):
            raise
        ran["refused"] += 1
        return 0
    for reference in REFERENCES:
        assert max(drawn.errors(out, reference())) < 1e-3
        wrong = {key: array + 0.1 for key, array in out.items() if key is drawn.y}
        assert max(drawn.errors(out | wrong, reference())) > 1e-3
    ran["ran"] += 1
    return 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_operations_and_their_gradients(kind):
    assert sum(check([kind], seed) for seed in range(3)) > 0


def test_graphs_of_several_operations():
    orders = [KINDS[seed::3] for seed in range(3)] + [KINDS[seed::5] for seed in range(5)]
    assert sum(check(kinds, seed) for seed, kinds in enumerate(orders)) > 0
