"""`trace` and `Graph`: a function recorded as the operators that it calls."""

from keyfold._trace._graph import Graph
from keyfold._trace._record import trace

__all__ = ["Graph", "trace"]
