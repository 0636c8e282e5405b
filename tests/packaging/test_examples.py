"""Each script in examples/ runs as a user runs it, and prints what it is there to show."""

import importlib.util
import subprocess
import sys

import pytest

from tests.helpers.cudnn import need
from tests.helpers.paths import EXAMPLES

SHOWS = {
    "array_type.py": [
        "way + way:  [200.0, 84.0] m",
        "way / time: [10.0, 6.0] m/s",
        "way + time: can't add s to m",
        "exp(way):   aten::exp: no kernel registered for UnitsCPU",
    ],
    "backend.py": [
        "backends:   host (cpu) Npu (npu)",
        "computed:   Tensor([3., 3.], dtype=float32, device='npu:1')",
        "gradient:   npu:1 [0.8399",
        "normalized: [[-1.0, 1.0], [-1.0, 1.0]] npu:1",
        "in a batch: [5.0, 25.0]",
        "traced:     npu:1",
        "autocast:   float16",
        "profiled:   ['aten::matmul']",
        "on the CPU: [[2.0, 4.0], [6.0, 8.0]]",
        "refused:    a tensor on npu:1 can't become a NumPy array, which is in the host's memory",
        "refused:    aten::add: arguments on different devices: 'self' is on npu:1,",
        "refused:    aten::rand isn't supported by backend 'Npu'",
    ],
    "cudnn_graph.py": [
        "inferred:  GraphTensor('y', float32, dim=[1, 2, 4, 8], stride=[64, 32, 8, 1])",
        'refused:   matmul(): graph "attention block", matmul: a (tensor "x", [1, 2, 4, 8]) and b ',
        "result:    ndarray (1, 2, 4, 8)",
        "normal:    True 1.000",
        """not given: plan(): "bias" is missing; 'shift' is no input of the graph""",
        "prepared:  0 builds",
        "kept:      True [1, 2, 32, 8]",
        'drawn:     n0["sdpa<br/>',
    ],
    "cudnn_plan.py": [
        "a100:     cuDNN engine",
        "l40s:     cuDNN engine",
        "h100:     cuDNN engine",
        "b200:     cuDNN engine",
        "steps:    conv_fprop, add, relu: engine",
        "run:      plan(): the plan is for the card b200, of which this machine was given",
        "split:    split into 3 plans: reduction | sub, exp, reduction | div",
        "compiled: conv_fprop, add, relu: engine",
        "read:     read from the plans in ",
    ],
    "custom_op.py": [
        "schema:      example::running_mean(Tensor x, float weight=0.5) -> Tensor",
        "called:      [2.  1.  4.5]",
        "gradient:    [0.875 0.75  0.5  ]",
        "a batch:     [[0.5, 0.75, 0.875], [0.5, 0.75, 0.875]]",
        "opcheck:     schema, layouts, meta, autograd, vmap, autocast, trace",
        "a bad one:   [0. 0. 0.]",
        "without it:  [0.5   0.75  0.875]",
        "in place:    example::clear(Tensor(a!) x, int[] where) -> () [1. 0. 0. 1.]",
        "unclear:     parameter 'x' is annotated dict[str, int], for which a schema has no type;",
    ],
    "dispatch_table.py": [
        "softplus: 6 of 8 points covered",
        "function           device  dtype             contiguity  points",
        "-----------------  ------  ----------------  ----------  ------",
        "softplus_any       all     float32, float64  all         2",
        "softplus_in_a_row  all     float32, float64  contiguous  2",
        "softplus_half      all     float16           all         2",
        "called:    [0.1269 0.3133 0.6931 1.3133 2.1269]",
        "half:      [0.127 0.313 0.694 1.313 2.127]",
        "strided:   softplus_any",
        "in a row:  softplus_in_a_row",
        "refused:   softplus: no kernel at device=cpu, dtype=int64, contiguity=contiguous; nearest",
        "a copy:    [0.6931 1.3133 2.1269] covers 8, the table still 6",
    ],
    "gradients.py": [
        "forward:           [-0.5, 0.333333",
        "no derivative:     example::softsign has no derivative",
        "a wrong one:       the derivative of output 0 with respect to input 0 is wrong in 3 of 9",
        "the right one:     True",
        "and its derivative: True",
        "slopes:            [0.25   0.4444 0.0625]",
    ],
    "layer.py": [
        "without the layer: nan",
        "a good input:      1.0397",
        "with the layer:    aten::mul made 1 NaN",
    ],
    "library.py": [
        'nothing registered: unknown dispatch key "NoSuchKey"',
        "namespaces:         []",
        "registered:         [0 2 4]",
        "closed:             shop::double was removed",
    ],
    "numba_kernel.py": [
        "a step:       [0.27 0.48 0.63]",
        "ten:          [0.6109 0.7214 0.6969]",
        "keyfold:      Tensor",
        "refused:      numba_demo::logistic: the kernel __main__.logistic",
    ],
    "shadow.py": [
        "built in:      [ 1. inf]",
        "taken:         aten::exp",
        "shadowed:      [1.00000000e+000 1.01423205e+304]",
        "explained:     True",
        "built in again: [ 1. inf]",
    ],
    "torch_operator.py": [
        "torch's now:      torch_demo::softsign(Tensor x) -> Tensor",
        "called:           [-0.5, 0.0, 0.75]",
        "gradient:         [0.25, 1.0, 0.0625]",
        "gradcheck:        True",
        "compiled:         [-0.5, 0.0, 0.75]",
        "a layer saw:      ['torch_demo::softsign']",
        "torch's erf here: [0.0, 0.5205, 0.8427]",
        "its slope:        [1.1284, 0.8788, 0.4151]",
        "taken back:       torch_demo::softsign was taken back from torch",
    ],
    "tracing.py": [
        "graph(%0 x: float64[2, 3]):",
        "  %1: float64[2, 1] = aten::mean.dim(%0, [1], keepdim=True)",
        "  %2: float64[2, 3] = aten::sub(%0, %1)",
        "  %3: float64[2, 3] = aten::pow.Scalar(%2, 2)",
        "  %4: float64[2, 1] = aten::mean.dim(%3, [1], keepdim=True)",
        "  %5: float64[2, 1] = aten::sqrt(%4)",
        "  %6: float64[2, 3] = aten::div(%2, %5)",
        "  return %6",
        "replayed:   True",
        "from JSON:  True",
        "drawn:      flowchart TD",
        "refused:    bool(): the tensor (bool[]) follows from the inputs of the trace",
        "with where: aten::where",
    ],
    "tvm_ffi_kernel.py": [
        "NumPy:        [0.3133 0.6931 1.3133]",
        "reversed:     [1.3133 0.6931 0.3133]",
        "keyfold:      Tensor",
        "its error:    beta must be above 0, not -1",
        "exported:     Tensor",
        "from C++:     1.5176",
    ],
}


# The packages that an example needs beside keyfold and NumPy.
NEEDS = {
    "numba_kernel.py": "numba",
    "torch_operator.py": "torch",
    "tvm_ffi_kernel.py": "tvm_ffi",
}


def test_every_example_is_tested_here():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHOWS)


# Compiling plans for four cards with libcudnn takes most of the time of the examples.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.one_python) if name == "cudnn_plan.py" else name
        for name in sorted(SHOWS)
    ],
)
def test_example_prints_what_it_shows(name, tmp_path):
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{name} needs {needed}, which isn't installed")
    if name == "cudnn_plan.py":
        need(name)
    # In a process of its own: what an example registers is process-wide.
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(SHOWS[name]), done.stdout
    for line, start in zip(lines, SHOWS[name], strict=True):
        assert line.startswith(start), f"{line!r} should start with {start!r}"
