"""`DispatchTable`: a kernel's instance by dtype, layout and more."""

from keyfold._dispatch_table._table import DispatchTable

__all__ = ["DispatchTable"]
