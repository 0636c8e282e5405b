"""cuDNN graphs on pocl: random ones with their gradients, against PyTorch."""

import numpy as np
import pytest

import keyfold as kf

pytest.importorskip("torch")

from tests.cudnn.test_executor import KINDS, compare


@pytest.fixture(scope="module", autouse=True)
def _plugin(pocl, opencl_library):
    with kf.load_plugin(opencl_library):
        yield


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_operations_and_their_gradients(kind):
    for seed in range(2):
        assert compare([kind], seed, "float32", device="opencl") < 1e-3


def test_graphs_of_several_operations():
    rng = np.random.default_rng(3)
    for seed in range(4):
        kinds = list(rng.choice(np.array(KINDS, dtype=object), size=4))
        assert compare(kinds, seed, "float32", device="opencl") < 1e-3
