"""NVIDIA's frontend's names: of data types and modes, and what to write for those that aren't here.

The frontend's own enumerations do, too, wherever a name does: `name_of` reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from keyfold._errors import BindingError

__all__ = [
    "GRAPH",
    "MODULE",
    "TENSOR",
    "data_type",
    "diagonal_alignment",
    "name_of",
    "norm_forward_phase",
    "reduction_mode",
    "refused_by_attention",
    "refused_by_graph",
    "refused_by_tensor",
    "scalar_type",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Names(type):
    """Classes of constants, whose errors list them."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            names = ", ".join(one for one in vars(cls) if not one.startswith("_"))
            raise AttributeError(f"{cls.__name__} has no {name}; it has {names}", obj=None)


class data_type(metaclass=_Names):  # noqa: N801 # NVIDIA's frontend's name
    """NVIDIA's names of data types. Wherever one is taken, keyfold's and NumPy's are, too."""

    NOT_SET = None
    FLOAT = "float32"
    DOUBLE = "float64"
    HALF = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOLEAN = "bool"
    FP8_E4M3 = "float8_e4m3fn"
    FP8_E5M2 = "float8_e5m2"


class norm_forward_phase(metaclass=_Names):  # noqa: N801
    """NVIDIA's names of the phases of norms, and a third."""

    INFERENCE = "inference"
    TRAINING = "training"
    PERSISTENT_TRAINING = "persistent_training"


class reduction_mode(metaclass=_Names):  # noqa: N801
    """NVIDIA's names of reductions."""

    ADD = "add"
    MUL = "mul"
    MUL_NO_ZEROS = "mul_no_zeros"
    MIN = "min"
    MAX = "max"
    AMAX = "amax"
    AVG = "avg"
    NORM1 = "norm1"
    NORM2 = "norm2"


class diagonal_alignment(metaclass=_Names):  # noqa: N801
    """NVIDIA's names of the diagonals of attention's masks."""

    TOP_LEFT = "top_left"
    BOTTOM_RIGHT = "bottom_right"


class scalar_type(metaclass=_Names):  # noqa: N801
    """NVIDIA's names of two kinds of scalars, which are one here: the graph holds the number."""

    RUNTIME_PARAM = "runtime_param"
    COMPILE_TIME_CONST = "compile_time_const"


def name_of(given: Any) -> Any:
    """The name of a constant of NVIDIA's frontend (`cudnn.data_type.HALF`); others as they are."""
    cls = type(given)
    if cls.__module__.partition(".")[0] == "cudnn" and hasattr(cls, "__members__"):
        return given.name
    return given


_BUILD = "g.build(device=...) checks the graph and returns its plan, which is called with arrays"
_CHOICE = "g.build() returns one plan: its policy=, workspace_limit= and tf32= choose which"
_RUN = "call the plan: out = plan({x: array})[y]; its out= takes arrays for outputs"
_SHOWN = "repr(g), g.draw() and g.to_json() show the graph"
_CUDA_GRAPH = "keyfold captures no CUDA graphs"
_HANDLE = "there are no handles and streams: g.build(device=...) names the device"
_RAGGED = "ragged tensors aren't there: pad, and give seq_len_q= and seq_len_kv= to sdpa"
_ORDER = "elements are in the order of the strides, and no other"
_ALIGNED = "a promise about values isn't needed here; alignment= is that of the address, in bytes"

# The words of keyfold's for names of `cudnn.pygraph` that `Graph` doesn't have.
GRAPH = {
    **dict.fromkeys(
        [
            "build_operation_graph", "build_plan_at_index", "build_plans", "check_support",
            "create_execution_plan", "create_execution_plans",
        ],
        _BUILD,
    ),
    **dict.fromkeys(
        [
            "backend_plan_entries", "deselect_behavior_notes", "deselect_engines",
            "deselect_numeric_notes", "deselect_workspace_greater_than", "get_behavior_notes",
            "get_behavior_notes_for_plan_at_index", "get_engine_and_knobs_at_index",
            "get_execution_plan_count", "get_plan_name_at_index", "plans",
            "select_behavior_notes", "select_numeric_notes", "select_plan", "selected_engine",
        ],
        _CHOICE,
    ),
    **dict.fromkeys(["execute", "execute_plan_at_index"], _RUN),
    **dict.fromkeys(["context", "get_node", "inspect", "nodes"], _SHOWN),
    **dict.fromkeys(
        ["get_cuda_graph_retention", "populate_cuda_graph", "update_cuda_graph"], _CUDA_GRAPH
    ),
    "deserialize": "Graph.from_json(text) reads a graph, and g.build() plans it",
    "find_tensor": 'write g["name"] or g[uid]',
    "get_inputs": "g.build().inputs are the tensors that a run takes",
    "get_outputs": "g.build().outputs are the tensors that a run returns",
    "get_workspace_size": "a run has its own scratch memory: plan.workspace_bytes says how much",
    "get_workspace_size_plan_at_index": "plan.workspace_bytes says how much scratch memory",
    "key": "g.signature() names what the graph computes; the cache of plans compares graphs",
    "serialize": "g.to_json() and pickle keep the graph; plans are built where they run",
}  # fmt: skip

# The same of a tensor's names.
TENSOR = {
    **dict.fromkeys(
        [
            "get_ragged_offset_multiplier", "ragged_offset", "ragged_offset_multiplier",
            "set_ragged_offset", "set_ragged_offset_multiplier",
        ],
        _RAGGED,
    ),
    **dict.fromkeys(["get_reordering_type", "reordering_type", "set_reordering_type"], _ORDER),
    **dict.fromkeys(["alignment_value", "set_alignment_value"], _ALIGNED),
    "set_is_pass_by_value": "g.tensor(..., is_pass_by_value=True) makes such a tensor",
    "pass_by_value": "the number that belongs to the graph is its value",
    "validate": "g.validate() looks at the whole graph",
}  # fmt: skip

# The same of the names of the module `cudnn`.
MODULE = {
    **dict.fromkeys(
        ["Handle", "create_handle", "destroy_handle", "get_stream", "set_stream"], _HANDLE
    ),
    **dict.fromkeys(
        [
            "behavior_note", "build_plan_policy", "heur_mode", "knob", "knob_type",
            "numerical_note",
        ],
        _CHOICE,
    ),
    **dict.fromkeys(["Tensor", "tensor"], "g.tensor(...) makes a keyfold.cudnn.GraphTensor"),
    **dict.fromkeys(["Node", "NodeType"], _SHOWN),
    **dict.fromkeys(["backend_version", "backend_version_string"], "no cuDNN is needed here"),
    **dict.fromkeys(
        ["graph", "graph_cache", "jit", "wrapper"],
        "keyfold.cudnn.Graph(...) makes a graph, and keyfold.cudnn.plan_cache keeps plans",
    ),
    "create_device_properties": _HANDLE,
    "create_kernel_cache": "keyfold.cudnn.plan_cache keeps what was built",
    "cudnnGraphNotSupportedError": "keyfold.NotSupported is raised",
    "cuda_graph_retention": _CUDA_GRAPH,
    "get_last_error_string": "errors are exceptions, which say all of it",
    "tensor_reordering": _ORDER,
}  # fmt: skip


def _refuses(**advice: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Refuse arguments that the method of NVIDIA's frontend has, each with what to do.

    None, the frontend's default, is no such argument.
    """

    def decorated(method: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(method)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in advice.keys() & kwargs.keys():
                if kwargs.pop(name) is not None:
                    raise BindingError(f"{method.__name__}() has no {name}=: {advice[name]}")
            return method(*args, **kwargs)

        return checked

    return decorated


# Arguments of the frontend's constructor, `tensor` and `sdpa`.
refused_by_graph = _refuses(
    handle=_HANDLE,
    sm_count=_HANDLE,
    sm_version=_HANDLE,
    device_property=_HANDLE,
    kernel_cache="keyfold.cudnn.plan_cache keeps what was built",
    is_dynamic_shape_enabled="keyfold.cudnn.plan_cache.prepare() builds plans for several sizes",
    is_override_shape_enabled="keyfold.cudnn.plan_cache.prepare() builds plans for several sizes",
)
refused_by_tensor = _refuses(
    ragged_offset=_RAGGED,
    ragged_offset_multiplier=_RAGGED,
    reordering_type=_ORDER,
    alignment_value=_ALIGNED,
)
refused_by_attention = _refuses(
    is_inference="generate_stats=True returns the statistics that the gradient needs",
    score_mod="bias= is added to the scores; other functions of them are matmul, softmax, matmul",
    use_alibi_mask="bias= takes the slopes as numbers that are added to the scores",
    implementation="the device's backend chooses",
    paged_attention_k_table="caches in pages aren't there: give k and v whole",
    paged_attention_v_table="caches in pages aren't there: give k and v whole",
)
