"""cuDNN's graphs without cuDNN: built, checked, drawn, and run on any device.

Where the real libcudnn is installed, it plans them: for cards that needn't be here, and to run on
one that is.

- `Graph`: tensors and operations, by the names of NVIDIA's frontend
- `GraphTensor`: a tensor of a graph
- `Plan`: a graph that is ready to run on a device; a run returns `Results`
- `CardProfile`: what libcudnn plans by for a card that needn't be here
- `plan_cache`: the process's cache of plans, a `PlanCache`, whose numbers are a `PlanCacheStats`
- `data_type`, `norm_forward_phase`, `reduction_mode`, `diagonal_alignment`, `scalar_type`: NVIDIA's
  names, beside which strings do; `pygraph` is NVIDIA's name of `Graph`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyfold import _foreign_names, _public
from keyfold.cudnn import _names
from keyfold.cudnn._cache import PlanCache, PlanCacheStats, plan_cache
from keyfold.cudnn._graph import Graph
from keyfold.cudnn._library import CardProfile
from keyfold.cudnn._names import (
    data_type,
    diagonal_alignment,
    norm_forward_phase,
    reduction_mode,
    scalar_type,
)
from keyfold.cudnn._plan import Plan, Results
from keyfold.cudnn._tensor import GraphTensor

__all__ = [
    "CardProfile",
    "Graph",
    "GraphTensor",
    "Plan",
    "PlanCache",
    "PlanCacheStats",
    "Results",
    "data_type",
    "diagonal_alignment",
    "norm_forward_phase",
    "plan_cache",
    "pygraph",
    "reduction_mode",
    "scalar_type",
]

pygraph = Graph  # NVIDIA's frontend's name

_public.adopt(__name__, globals(), __all__)

_foreign_names.teach(Graph, _names.GRAPH)
_foreign_names.teach(GraphTensor, _names.TENSOR)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        advice = _names.MODULE.get(name)
        text = f"module 'keyfold.cudnn' has no attribute {name!r}"
        raise AttributeError(text if advice is None else f"{text}; {advice}", obj=None)
