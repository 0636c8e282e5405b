"""cuDNN's graphs without cuDNN: built, checked, drawn, and run on any device.

- `Graph`: tensors and operations, by the names of NVIDIA's frontend
- `GraphTensor`: a tensor of a graph
- `Plan`: a graph that is ready to run on a device; a run returns `Results`
- `plan_cache`: the process's cache of plans, a `PlanCache`, whose numbers are a `PlanCacheStats`
- `data_type`: NVIDIA's names of data types
"""

from __future__ import annotations

from keyfold import _public
from keyfold.cudnn._cache import PlanCache, PlanCacheStats, plan_cache
from keyfold.cudnn._graph import Graph
from keyfold.cudnn._plan import Plan, Results
from keyfold.cudnn._tensor import GraphTensor

__all__ = [
    "Graph",
    "GraphTensor",
    "Plan",
    "PlanCache",
    "PlanCacheStats",
    "Results",
    "data_type",
    "plan_cache",
]


class data_type:  # noqa: N801 # NVIDIA's frontend's name
    """NVIDIA's names of data types. Wherever one is taken, keyfold's and NumPy's are, too."""

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


_public.adopt(__name__, globals(), __all__)
