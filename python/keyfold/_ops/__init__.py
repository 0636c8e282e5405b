"""Operators as functions: creation, pointwise, reductions and shapes; the namespaces of `ops`."""

from keyfold._ops._namespaces import Namespace, Ops

__all__ = ["Namespace", "Ops"]
