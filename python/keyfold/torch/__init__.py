"""keyfold operators in PyTorch, and PyTorch operators in keyfold.

- `export(op)` makes a keyfold operator a torch custom operator, with its shapes and derivative
- `import_(op)` makes a torch operator a keyfold operator, with its shapes and derivative
- `remove(op)` takes either back

`import keyfold` doesn't import this module; it needs PyTorch.
"""

try:
    import torch as _torch  # noqa: F401 - only to say what is missing
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError(
        "keyfold.torch needs PyTorch, which isn't installed: pip install torch, or see "
        "https://pytorch.org/get-started",
        name="torch",
    ) from None

from keyfold import _public
from keyfold.torch._export import Exported, export
from keyfold.torch._import import import_, remove

__all__ = ["Exported", "export", "import_", "remove"]

_public.adopt(__name__, globals(), __all__)
